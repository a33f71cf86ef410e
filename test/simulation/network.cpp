#include "test/simulation/network.hpp"

#include <dlfcn.h>
#include <sys/socket.h>

#include <chrono>
#include <stdexcept>

#include "protocol/tls/channel.hpp"
#include "protocol/tls/context.hpp"
#include "protocol/tls/transport.hpp"
#include "protocol/transport/rdma.hpp"
#include "protocol/transport/rdma_setup.hpp"
#include "protocol/transport/shared_memory.hpp"
#include "protocol/transport/simulated.hpp"
#include "protocol/transport/stream.hpp"
#include "protocol/wire/limits.hpp"
#include "test/simulation/breaking.hpp"
#include "test/simulation/fabric.hpp"
#include "test/simulation/seeded_openssl.hpp"

namespace gpuwire::simulation {

namespace {

using transport::Transport;

constexpr std::chrono::milliseconds kTimeout{wire::kHandshakeTimeoutMs};
// An upper bound for the bytes, in either direction, until the session continues over a connection; for TLS, too.
constexpr uint64_t kResumedBytes = 2000;
// The approximate bytes, in either direction, that the ends of an RDMA connection exchange beside the fabric.
constexpr uint64_t kRdmaSetUpBytes = 200;
constexpr uint64_t kRecordsPerKeyMax = 40;
constexpr int kSmallBufferBytes = 8192;

std::shared_ptr<transport::RdmaFabric> fabric() {
  static const std::shared_ptr<transport::RdmaFabric> opened = [] {
    auto fabric = transport::RdmaFabric::open(GPUWIRE_SIMULATION_FABRIC);
    if (!fabric) throw std::runtime_error(fabric.error());
    return *fabric;
  }();
  return opened;
}

void begin_fabric(const Scenario& scenario) {
  fabric();
  static const auto begin = reinterpret_cast<GpuwireSimulatedFabricBegin>(
      ::dlsym(::dlopen(GPUWIRE_SIMULATION_FABRIC, RTLD_NOW | RTLD_NOLOAD), kGpuwireSimulatedFabricBegin));
  begin(scenario.seed, scenario.fabric_breaks);
}

// `send_buffer_bytes`: the size of the socket's send buffer; 0: the default.
std::unique_ptr<Transport> adopted(int socket, int send_buffer_bytes) {
  auto stream = transport::adopt_stream(socket, "simulated");
  if (!stream) throw std::runtime_error("no descriptor is to be had");
  if (send_buffer_bytes) ::setsockopt(socket, SOL_SOCKET, SO_SNDBUF, &send_buffer_bytes, sizeof send_buffer_bytes);
  return stream;
}

}  // namespace

Network::Network(const Scenario& scenario) : scenario_(scenario), random_(scenario.seed) {
  if (scenario.road == Road::rdma) begin_fabric(scenario);
  if (scenario.road != Road::tls) return;
  seed_openssl(scenario.seed);
  tls::SessionKey key{};
  client_context_ = tls::key_client_context(key);
  server_context_ = tls::key_server_context(key);
  records_per_key_ = 1 + random_() % kRecordsPerKeyMax;
}

Network::~Network() = default;

std::vector<uint64_t> Network::cut_at() const {
  std::lock_guard lock(mutex_);
  return cut_at_;
}

std::function<void()> Network::told(uint64_t cut) {
  return [this, cut] {
    std::lock_guard lock(mutex_);
    cut_at_.push_back(cut);
  };
}

std::pair<RawEnd, RawEnd> Network::connect() {
  Fate fate;
  fate.cut = made_ >= scenario_.cuts ? ~0ull
             : scenario_.sweeps      ? scenario_.sweep_from + made_
                                     : random_() % (scenario_.cut_bytes_max + 1);
  fate.from_client = random_() % 2;
  // A resuming client waits for its answer for seconds; heartbeats apply only after that.
  if (scenario_.swallows && random_() % 4 == 0) fate.swallow = std::exchange(fate.cut, ~0ull) + kResumedBytes;
  ++made_;
  std::erase_if(relays_, [](const auto& relay) { return relay->over(); });
  switch (scenario_.road) {
    case Road::simulated: return simulated(fate);
    case Road::shared_memory: return shared_memory(fate);
    case Road::tls: return relayed(fate);
    case Road::rdma: return by_rdma(fate);
  }
  throw std::logic_error("a road of an unknown kind");
}

Network::Pair Network::simulated(const Fate& fate) {
  auto [near, far] = transport::simulated_pair({.seed = random_(),
                                                .piece_bytes_max = scenario_.piece_bytes_max,
                                                .window_bytes = 1 + random_() % 100'000,
                                                .delay_polls_max = scenario_.delay_polls_max,
                                                .cut_first_to_second = fate.from_client ? fate.cut : ~0ull,
                                                .cut_second_to_first = fate.from_client ? ~0ull : fate.cut,
                                                .was_cut = told(fate.cut),
                                                .swallow_first_to_second = fate.from_client ? fate.swallow : ~0ull,
                                                .swallow_second_to_first = fate.from_client ? ~0ull : fate.swallow});
  return {RawEnd{std::move(near)}, RawEnd{std::move(far)}};
}

Network::Pair Network::shared_memory(const Fate& fate) {
  auto pair = transport::shared_memory_pair(transport::shared_memory::kRingBytesMin);
  if (!pair) throw std::runtime_error(pair.error());
  return {RawEnd{std::move(pair->first), fate.from_client ? ~0ull : fate.cut},
          RawEnd{std::move(pair->second), fate.from_client ? fate.cut : ~0ull}};
}

Network::Pair Network::relayed(const Fate& fate) {
  int ends[2];
  auto relay = Relay::between(
      ends, {.seed = random_(),
             .piece_bytes_max = scenario_.piece_bytes_max,
             .cut = {fate.from_client ? fate.cut : ~0ull, fate.from_client ? ~0ull : fate.cut},
             .swallow = {fate.from_client ? fate.swallow : ~0ull, fate.from_client ? ~0ull : fate.swallow},
             .was_cut = told(fate.cut)});
  if (!relay) throw std::runtime_error("no sockets are to be had");
  relays_.push_back(std::move(relay));
  const int buffer_bytes = random_() % 2 ? kSmallBufferBytes : 0;
  return {RawEnd{adopted(ends[0], buffer_bytes)}, RawEnd{adopted(ends[1], buffer_bytes)}};
}

// Some connections break during the handshake, over the connection beside the fabric; the others after so many bytes
// over the fabric.
Network::Pair Network::by_rdma(const Fate& fate) {
  if (fate.cut != ~0ull && random_() % 4 == 0) {
    Fate early = fate;
    if (!scenario_.sweeps) early.cut = random_() % (kRdmaSetUpBytes + 1);
    return relayed(early);
  }
  int ends[2];
  if (::socketpair(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0, ends) != 0)
    throw std::runtime_error("no sockets are to be had");
  return {RawEnd{adopted(ends[0], 0), fate.from_client ? ~0ull : fate.cut},
          RawEnd{adopted(ends[1], 0), fate.from_client ? fate.cut : ~0ull}};
}

std::unique_ptr<Transport> Network::breaking(std::unique_ptr<Transport> inside, uint64_t receives, bool resets) {
  return std::make_unique<BreakingTransport>(std::move(inside), receives, resets, told(receives));
}

Network::Opened Network::keyed(RawEnd end, bool client) {
  const int descriptor = end.transport->descriptor();
  auto channel = client ? tls::TlsChannel::connect(client_context_, descriptor)
                        : tls::TlsChannel::accept(server_context_, descriptor);
  if (!channel) return tl::unexpected(std::string("out of memory"));
  channel->set_records_per_key(records_per_key_);
  if (auto met = channel->handshake(kTimeout); !met) return tl::unexpected(met.error());
  return tls::tls_transport(std::move(end.transport), std::move(channel));
}

Network::Opened Network::over_fabric(RawEnd end, bool client) {
  const Transport& plain = *end.transport;
  auto peek = [&](std::span<std::byte> out) { return transport::peek_socket(plain, out); };
  auto agreed = client ? transport::ask_for_rdma(std::move(end.transport), fabric(), kTimeout)
                       : transport::offer_rdma(std::move(end.transport), peek, fabric(), "", kTimeout);
  if (agreed.lost) return tl::unexpected(agreed.declined);
  return breaking(std::move(agreed.connection), end.receives_max, true);
}

Network::Opened Network::open(RawEnd end, bool client) {
  switch (scenario_.road) {
    case Road::simulated: return std::move(end.transport);
    case Road::shared_memory: return breaking(std::move(end.transport), end.receives_max, false);
    case Road::tls: return keyed(std::move(end), client);
    case Road::rdma: return over_fabric(std::move(end), client);
  }
  throw std::logic_error("a road of an unknown kind");
}

}  // namespace gpuwire::simulation
