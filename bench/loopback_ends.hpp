// Two ends of a connection over loopback, without TLS or with it, for the benchmarks of transports.
#pragma once

#include <poll.h>

#include <cerrno>
#include <chrono>
#include <cstdio>
#include <cstdlib>
#include <memory>
#include <string>
#include <thread>
#include <utility>

#include "protocol/tls/transport.hpp"
#include "protocol/transport/stream.hpp"
#include "protocol/transport/tcp.hpp"

namespace gpuwire::bench {

using Ends = std::pair<std::unique_ptr<transport::Transport>, std::unique_ptr<transport::Transport>>;
inline constexpr std::chrono::seconds kLimit{60};

[[noreturn]] inline void fail(const std::string& what) {
  std::fprintf(stderr, "%s: %s\n", program_invocation_short_name, what.c_str());
  std::exit(1);
}

inline Ends bare() {
  auto listener = transport::TcpListener::listen({"127.0.0.1", 0});
  if (!listener) fail(listener.error());
  auto near = transport::connect_tcp((*listener)->endpoint(), kLimit);
  if (!near) fail(near.error());
  pollfd ready{(*listener)->descriptor(), POLLIN, 0};
  poll(&ready, 1, 10'000);
  return {std::move(*near), transport::adopt_stream((*listener)->accept().descriptor)};
}

inline Ends encrypted() {
  Ends ends = bare();
  tls::SessionKey key{};
  tls::Context client = tls::key_client_context(key), server = tls::key_server_context(key);
  auto near = tls::TlsChannel::connect(client, ends.first->descriptor()),
       far = tls::TlsChannel::accept(server, ends.second->descriptor());
  std::thread peer([&] {
    if (!far->handshake(kLimit)) fail(far->failure());
  });
  if (!near->handshake(kLimit)) fail(near->failure());
  peer.join();
  return {tls::tls_transport(std::move(ends.first), std::move(near)),
          tls::tls_transport(std::move(ends.second), std::move(far))};
}

}  // namespace gpuwire::bench
