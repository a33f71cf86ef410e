// Measures the cost of the windows of an RDMA connection: the bandwidth of bulk between two threads through the
// transport of sessions, which copies it into and out of registered memory; the bandwidth of the plug-in's own
// messages, which use the bytes in place in registered memory; and a core's rate of copying through a window. Uses the
// transport of UCX_TLS. Prints one JSON object; exit code 77: no RDMA on this machine.
#include <atomic>
#include <chrono>
#include <cstdio>
#include <cstring>
#include <filesystem>
#include <string>
#include <thread>
#include <vector>

#include "bench/loopback_ends.hpp"
#include "protocol/transport/rdma.hpp"
#include "protocol/transport/rdma_plugin.hpp"

namespace {

using namespace gpuwire;
using namespace gpuwire::bench;
using Clock = std::chrono::steady_clock;
constexpr size_t kMemoryBytes = 64 << 20;  // of each end
constexpr size_t kTotalBytes = size_t(2) << 30;
constexpr size_t kPieceBytes = 8 << 20;  // of one call of the transport
constexpr size_t kMessagesUnderWay = 4;
constexpr int kNotInstalled = 77;

double rate(Clock::time_point begun) {
  return double(kTotalBytes) / 1e9 / std::chrono::duration<double>(Clock::now() - begun).count();
}

// --- through the transport -----------------------------------------------------------------------------------------

Ends connect(const std::shared_ptr<transport::RdmaFabric>& fabric) {
  Ends beside = bare();
  auto near = transport::RdmaEnd::make(fabric), far = transport::RdmaEnd::make(fabric);
  if (!near || !far) fail(near ? far.error() : near.error());
  (*far)->greet_back((*near)->address(), (*near)->token());
  if (auto greeted = (*near)->greet((*far)->address(), (*far)->token()); !greeted) fail(greeted.error());
  if (!(*near)->await_greeting(kLimit) || !(*far)->await_greeting(kLimit)) fail((*near)->failure());
  return {transport::RdmaEnd::carry(std::move(*near), std::move(beside.first)),
          transport::RdmaEnd::carry(std::move(*far), std::move(beside.second))};
}

double transport_gb_s(const std::shared_ptr<transport::RdmaFabric>& fabric) {
  Ends ends = connect(fabric);
  std::vector<std::byte> from(kMemoryBytes, std::byte{1}), to(kMemoryBytes, std::byte{2});
  auto begun = Clock::now();
  std::thread receiver([&] {
    for (size_t done = 0; done < kTotalBytes; done += kPieceBytes)
      if (receive_all(*ends.second, {to.data() + done % kMemoryBytes, kPieceBytes}, kLimit).status !=
          transport::IoStatus::ok)
        fail("receive");
  });
  for (size_t done = 0; done < kTotalBytes; done += kPieceBytes) {
    iovec piece{from.data() + done % kMemoryBytes, kPieceBytes};
    if (send_all(*ends.first, {&piece, 1}, kLimit).status != transport::IoStatus::ok) fail("send");
  }
  receiver.join();
  return rate(begun);
}

// --- by the plug-in's messages -------------------------------------------------------------------------------------

// An end whose whole memory is registered. One thread.
struct Raw {
  Raw(const std::shared_ptr<transport::RdmaFabric>& owner, std::byte fill)
      : fabric(owner), plugin(owner->plugin()), memory(kMemoryBytes, fill) {
    char error[256] = {};
    end = plugin.make(fabric->handle(), &kEvents, this, memory.data(), memory.size(), error, sizeof error);
    if (!end) fail(error);
  }
  ~Raw() { plugin.close(end); }
  Raw(const Raw&) = delete;
  std::string address() {
    std::string bytes(transport::rdma::kAddressBytesMax, '\0');
    bytes.resize(plugin.address(end, bytes.data(), bytes.size()));
    return bytes;
  }
  void connect(const std::string& to) {
    char error[256] = {};
    if (!plugin.connect(end, to.data(), to.size(), error, sizeof error)) fail(error);
  }
  static const GpuwireRdmaEvents kEvents;

  struct Arrival {
    void* message;
    size_t bytes;
  };
  const std::shared_ptr<transport::RdmaFabric> fabric;
  const GpuwireRdmaPlugin& plugin;
  std::vector<std::byte> memory;
  GpuwireRdmaEnd* end = nullptr;
  size_t under_way = 0, arrived_bytes = 0, come_bytes = 0;
  std::vector<Arrival> waiting;
};

const GpuwireRdmaEvents Raw::kEvents = {
    [](void* user, const void*, size_t, const void* data, size_t bytes, void* message) -> int {
      Raw& self = *static_cast<Raw*>(user);
      if (data) {  // UCX has copied it already
        std::memcpy(self.memory.data() + self.arrived_bytes % kMemoryBytes, data, bytes);
        self.arrived_bytes += bytes;
        self.come_bytes += bytes;
        return 0;
      }
      self.waiting.push_back({message, bytes});
      return 1;
    },
    [](void* user, uint64_t, int ok) {
      if (!ok) fail("a message was not sent");
      --static_cast<Raw*>(user)->under_way;
    },
    [](void* user, uint64_t bytes, int ok) {
      if (!ok) fail("a message was not fetched");
      static_cast<Raw*>(user)->come_bytes += bytes;
    },
    [](void*, const char* why) { fail(why); }};

double in_place_gb_s(const std::shared_ptr<transport::RdmaFabric>& fabric, size_t message_bytes) {
  Raw near(fabric, std::byte{1}), far(fabric, std::byte{2});
  near.connect(far.address());
  std::atomic<bool> over{false};
  auto begun = Clock::now();
  std::thread receiver([&] {
    while (far.come_bytes < kTotalBytes) {
      far.plugin.progress(far.end);
      for (auto& message : std::exchange(far.waiting, {})) {
        int outcome = far.plugin.fetch(far.end, message.message, far.memory.data() + far.arrived_bytes % kMemoryBytes,
                                       message.bytes, message.bytes);
        far.arrived_bytes += message.bytes;
        if (outcome == kGpuwireRdmaDone) far.come_bytes += message.bytes;
        if (outcome == kGpuwireRdmaFailed) fail("fetch");
      }
    }
    over = true;
  });
  uint64_t header = 0;
  size_t sent = 0;
  while (!over) {
    if (sent < kTotalBytes && near.under_way < kMessagesUnderWay) {
      int outcome = near.plugin.send(near.end, &header, sizeof header, near.memory.data() + sent % kMemoryBytes,
                                     message_bytes, 0);
      if (outcome == kGpuwireRdmaFailed) fail("send");
      near.under_way += outcome == kGpuwireRdmaUnderWay;
      sent += message_bytes;
    }
    near.plugin.progress(near.end);
  }
  receiver.join();
  double gb_s = rate(begun);
  while (near.under_way != 0) near.plugin.progress(near.end);
  return gb_s;
}

// --- the copies alone ----------------------------------------------------------------------------------------------

// Copies memory into a window that stays in the cache, as the transport does at either end.
double window_copy_gb_s() {
  std::vector<std::byte> memory(kMemoryBytes, std::byte{1}), window(transport::rdma::kWindowBytes, std::byte{2});
  auto begun = Clock::now();
  for (size_t done = 0; done < kTotalBytes; done += transport::rdma::kWindowBytes)
    std::memcpy(window.data(), memory.data() + done % kMemoryBytes, transport::rdma::kWindowBytes);
  if (window[17] != std::byte{1}) fail("memcpy");
  return rate(begun);
}

}  // namespace

int main(int argc, char**) {
  if (argc > 1) {
    std::printf("usage: UCX_TLS=tcp|posix|... rdma_loopback; one JSON object on stdout\n");
    return 0;
  }
  auto program = std::filesystem::read_symlink("/proc/self/exe");
  auto fabric =
      transport::RdmaFabric::open((program.parent_path().parent_path() / "lib/gpuwire" / kGpuwireRdmaLibrary).string());
  if (!fabric) {
    std::printf("%s\n", fabric.error().c_str());
    return kNotInstalled;
  }
  std::printf("{\"window_copy_gb_s\": %.2f, \"transport_gb_s\": %.2f, \"in_place_1_mib_gb_s\": %.2f, ",
              window_copy_gb_s(), transport_gb_s(*fabric), in_place_gb_s(*fabric, 1 << 20));
  std::printf("\"in_place_8_mib_gb_s\": %.2f}\n", in_place_gb_s(*fabric, 8 << 20));
  return 0;
}
