#include "test/protocol/transport/pairs.hpp"

#include <poll.h>

#include <cstdio>
#include <cstdlib>
#include <filesystem>
#include <map>
#include <mutex>
#include <stdexcept>
#include <thread>

#include "protocol/tls/transport.hpp"
#include "protocol/transport/rdma.hpp"
#include "protocol/transport/rdma_plugin.hpp"
#include "protocol/transport/shared_memory.hpp"
#include "protocol/transport/simulated.hpp"
#include "protocol/transport/stream.hpp"
#include "protocol/transport/tcp.hpp"
#include "protocol/transport/unix.hpp"

namespace gpuwire::test {

namespace {

Ends tcp_ends(uint64_t) {
  auto listener = transport::TcpListener::listen({"127.0.0.1", 0});
  if (!listener) throw std::runtime_error(listener.error());
  auto client = transport::connect_tcp((*listener)->endpoint(), std::chrono::seconds(120));
  if (!client) throw std::runtime_error(client.error());
  pollfd ready{(*listener)->descriptor(), POLLIN, 0};
  poll(&ready, 1, 120'000);
  auto accepted = (*listener)->accept();
  return {std::move(*client), transport::adopt_stream(accepted.descriptor, accepted.peer)};
}

Ends unix_ends(uint64_t) {
  auto pair = transport::unix_pair();
  if (!pair) throw std::runtime_error(pair.error());
  return std::move(*pair);
}

Ends shared_ends(uint64_t) {
  auto pair = transport::shared_memory_pair();
  if (!pair) throw std::runtime_error(pair.error());
  return std::move(*pair);
}

Ends small_shared_ends(uint64_t) {
  auto pair = transport::shared_memory_pair(transport::shared_memory::kRingBytesMin);
  if (!pair) throw std::runtime_error(pair.error());
  return std::move(*pair);
}

Ends simulated_ends(uint64_t seed) { return transport::simulated_pair({.seed = seed}); }

Ends unkind_ends(uint64_t seed) {
  return transport::simulated_pair(
      {.seed = seed, .piece_bytes_max = 4096, .window_bytes = 32 * 1024, .delay_polls_max = 5});
}

// The second handshake of a session, over `ends`.
Ends inside_tls(Ends ends) {
  constexpr std::chrono::seconds kLimit{120};
  tls::SessionKey key{};
  tls::Context client = tls::key_client_context(key), server = tls::key_server_context(key);
  auto near = tls::TlsChannel::connect(client, ends.first->descriptor()),
       far = tls::TlsChannel::accept(server, ends.second->descriptor());
  bool met = false;
  std::thread other([&] { met = bool(far->handshake(kLimit)); });
  bool met_too = bool(near->handshake(kLimit));
  other.join();
  if (!met || !met_too) throw std::runtime_error("no TLS: " + near->failure() + far->failure());
  return {tls::tls_transport(std::move(ends.first), std::move(near)),
          tls::tls_transport(std::move(ends.second), std::move(far))};
}

Ends tls_ends(uint64_t seed) { return inside_tls(tcp_ends(seed)); }
Ends tls_unix_ends(uint64_t seed) { return inside_tls(unix_ends(seed)); }

Ends rdma_ends(const std::shared_ptr<transport::RdmaFabric>& fabric) {
  constexpr std::chrono::seconds kLimit{120};
  Ends beside = tcp_ends(0);
  auto near = transport::RdmaEnd::make(fabric), far = transport::RdmaEnd::make(fabric);
  if (!near || !far) throw std::runtime_error("no RDMA end: " + (near ? far.error() : near.error()));
  (*far)->greet_back((*near)->address(), (*near)->token());
  if (auto greeted = (*near)->greet((*far)->address(), (*far)->token()); !greeted)
    throw std::runtime_error("no greeting: " + greeted.error());
  if (!(*near)->await_greeting(kLimit) || !(*far)->await_greeting(kLimit))
    throw std::runtime_error("no greeting: " + (*near)->failure() + (*far)->failure());
  return {transport::RdmaEnd::carry(std::move(*near), std::move(beside.first)),
          transport::RdmaEnd::carry(std::move(*far), std::move(beside.second))};
}

Ends rdma_tcp_ends(uint64_t) { return rdma_ends(*rdma_fabric("tcp")); }
Ends rdma_shared_ends(uint64_t) { return rdma_ends(*rdma_fabric("posix")); }

std::vector<PairKind> all_kinds() {
  std::vector<PairKind> kinds = {{"tcp", tcp_ends},
                                 {"unix", unix_ends},
                                 {"tls", tls_ends},
                                 {"tls over unix", tls_unix_ends},
                                 {"shared memory", shared_ends},
                                 {"shared memory, small rings", small_shared_ends},
                                 {"simulated", simulated_ends},
                                 {"simulated with delays and short pieces", unkind_ends}};
  if (auto fabric = rdma_fabric("tcp")) {
    kinds.push_back({"rdma over UCX's tcp", rdma_tcp_ends});
    kinds.push_back({"rdma over UCX's posix", rdma_shared_ends});
  } else {
    std::printf("rdma is left out: %s\n", fabric.error().c_str());
  }
  return kinds;
}

}  // namespace

tl::expected<std::shared_ptr<transport::RdmaFabric>, std::string> rdma_fabric(const std::string& over) {
  static std::mutex mutex;
  static std::map<std::string, std::shared_ptr<transport::RdmaFabric>> fabrics;
  std::lock_guard lock(mutex);
  if (auto found = fabrics.find(over); found != fabrics.end()) return found->second;
  setenv("UCX_TLS", over.c_str(), 1);
  setenv("UCX_NET_DEVICES", "all", 1);
  auto fabric = transport::RdmaFabric::open(rdma_plugin());
  unsetenv("UCX_TLS");
  unsetenv("UCX_NET_DEVICES");
  if (fabric) fabrics[over] = *fabric;
  return fabric;
}

std::string rdma_plugin() {
  auto program = std::filesystem::read_symlink("/proc/self/exe");
  return (program.parent_path().parent_path() / "lib/gpuwire" / kGpuwireRdmaLibrary).string();
}

const std::vector<PairKind>& pair_kinds() {
  static const std::vector<PairKind> kinds = all_kinds();
  return kinds;
}

uint64_t test_seed() {
  static const uint64_t seed = [] {
    const char* given = std::getenv("GPUWIRE_TEST_SEED");
    uint64_t value = given ? std::strtoull(given, nullptr, 10) : 20251;
    std::printf("seed: GPUWIRE_TEST_SEED=%llu\n", static_cast<unsigned long long>(value));
    return value;
  }();
  return seed;
}

}  // namespace gpuwire::test
