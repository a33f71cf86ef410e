// Two channels that shake hands with each other, each on a thread.
#pragma once

#include <sys/socket.h>
#include <unistd.h>

#include <chrono>
#include <memory>
#include <stdexcept>
#include <string>
#include <thread>

#include "protocol/tls/channel.hpp"

namespace gpuwire::test {

inline constexpr std::chrono::seconds kLimit{120};

struct SocketPair {
  int client = -1, server = -1;
  SocketPair() {
    int ends[2];
    if (socketpair(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0, ends) != 0) throw std::runtime_error("socketpair");
    client = ends[0];
    server = ends[1];
  }
  ~SocketPair() {
    close_client();
    close_server();
  }
  void close_client() { close_one(client); }
  void close_server() { close_one(server); }

 private:
  static void close_one(int& descriptor) {
    if (descriptor >= 0) close(descriptor);
    descriptor = -1;
  }
};

struct Met {
  SocketPair sockets;
  std::unique_ptr<tls::TlsChannel> client, server;
  std::string client_error, server_error;  // empty: shaken hands
};

inline void meet(Met& met, const tls::Context& client, const tls::Context& server, tls::Wanted wanted = {}) {
  met.client = tls::TlsChannel::connect(client, met.sockets.client, std::move(wanted));
  met.server = tls::TlsChannel::accept(server, met.sockets.server);
  if (!met.client || !met.server) throw std::runtime_error("no channel");
  std::thread other([&] {
    if (auto done = met.server->handshake(kLimit); !done) met.server_error = done.error();
  });
  if (auto done = met.client->handshake(kLimit); !done) {
    met.client_error = done.error();
    // The other side may be waiting for more.
    shutdown(met.sockets.client, SHUT_WR);
  }
  other.join();
}

// Waits in poll until something has come: the bytes, or what became of the connection.
transport::IoResult receive_some(tls::TlsChannel& channel, int descriptor, std::span<std::byte> out);
bool send_all(tls::TlsChannel& channel, int descriptor, std::span<const std::byte> bytes);

}  // namespace gpuwire::test
