// The lane that an RDMA connection carries itself: bulk out of memory that is offered to the fabric and into it, and
// what becomes of it when the connection is cut in the middle. Where the plug-in is not there, nothing is tested.
#include <doctest/doctest.h>

#include <sys/socket.h>

#include <memory>
#include <random>
#include <thread>

#include "protocol/transport/rdma_memory.hpp"
#include "protocol/transport/rdma_message.hpp"
#include "test/protocol/link/talk.hpp"
#include "test/protocol/link/transport_around.hpp"
#include "test/protocol/transport/pairs.hpp"

// As in rdma_test.cpp: an end that UCX cannot close safely is left to it.
extern "C" __attribute__((visibility("default"))) const char* __lsan_default_suppressions() {
  return "leak:libucs.so\nleak:libucp.so\nleak:libuct\n";
}

using namespace gpuwire;
using link::LaneSet;
using link::Link;
using test::End;
using test::Talk;
using transport::IoResult;
using transport::IoStatus;
using transport::MessageLane;
using transport::RdmaMemory;

namespace {

constexpr std::chrono::seconds kLimit{120};

constexpr link::LinkLimits kLongLimits{.ring_bytes = 1 << 16,
                                       .bulk_bytes_max = 16 << 20,
                                       .bulk_in_ring_max = test::kInRing,
                                       .lane_part_bytes_min = 64 << 10};

std::vector<std::string> fabrics() {
  std::vector<std::string> there;
  for (const char* over : {"tcp", "posix"}) {
    if (auto fabric = test::rdma_fabric(over)) there.push_back(over);
    else MESSAGE("left out: ", fabric.error());
  }
  return there;
}

test::Ends rdma_ends(const std::string& over) { return test::rdma_ends(*test::rdma_fabric(over)); }

// Some of it is offered to the fabric, as pinned memory is, and taken back when nobody needs it; some is any memory.
auto mixed_memory(RdmaMemory& offered, uint64_t seed) {
  auto random = std::make_shared<std::mt19937_64>(seed);
  auto mutex = std::make_shared<std::mutex>();
  return [&offered, random, mutex](size_t bytes) {
    bool pinned;
    {
      std::lock_guard lock(*mutex);
      pinned = (*random)() % 3 != 0;
    }
    bytes = std::max(bytes, transport::kOfferedBytesMin);
    auto* memory = new std::byte[bytes];
    if (pinned) offered.offer(memory, bytes);
    return std::shared_ptr<std::byte>(memory, [&offered, pinned](std::byte* block) {
      if (pinned && !offered.forget(block, kLimit)) std::abort();
      delete[] block;
    });
  };
}

struct Linked {
  Linked(test::Ends ends, RdmaMemory& memory, uint64_t seed)
      : client(std::move(ends.first), wire::Sender::server, true, kLongLimits),
        server(std::move(ends.second), wire::Sender::client, false, kLongLimits) {
    client.bulk_bytes_max = server.bulk_bytes_max = 5 << 20;  // some are stripes of three kinds: whole, last, only
    client.memory = mixed_memory(memory, seed);
    server.memory = mixed_memory(memory, seed + 1);
  }
  End client, server;
};

// Cuts the connection while the n-th stripe is under way.
struct Cut {
  std::atomic<int> stripes{1 << 30};
  std::atomic<unsigned> in_the_middle{0};
};

class CuttingLane final : public MessageLane {
 public:
  CuttingLane(std::unique_ptr<MessageLane> inner, int descriptor, Cut& cut)
      : inner_(std::move(inner)), descriptor_(descriptor), cut_(cut) {}
  size_t stripe_bytes() const noexcept override { return inner_->stripe_bytes(); }
  bool takes(std::span<const std::byte> memory) const noexcept override { return inner_->takes(memory); }
  bool begin_sending(const wire::StripeHeader& header, std::span<const std::byte> data) noexcept override {
    const bool begun = inner_->begin_sending(header, data);
    if (!data.empty()) passed();
    return begun;
  }
  Outcome sending() noexcept override { return inner_->sending(); }
  bool next(wire::StripeHeader& header) noexcept override { return inner_->next(header); }
  bool begin_fetching(std::span<std::byte> out) noexcept override {
    const bool begun = inner_->begin_fetching(out);
    if (begun) passed();
    return begun;
  }
  void begin_fetching() noexcept override {
    inner_->begin_fetching();
    passed();
  }
  Outcome fetching() noexcept override { return inner_->fetching(); }
  const std::byte* fetched() const noexcept override { return inner_->fetched(); }
  bool over() noexcept override { return inner_->over(); }
  void wait(unsigned interest, transport::Nanoseconds timeout) noexcept override { inner_->wait(interest, timeout); }
  void wake() noexcept override { inner_->wake(); }
  bool finish() noexcept override { return inner_->finish(); }

 private:
  void passed() noexcept {
    if (--cut_.stripes != 0) return;
    ++cut_.in_the_middle;
    ::shutdown(descriptor_, SHUT_RDWR);
  }
  const std::unique_ptr<MessageLane> inner_;
  const int descriptor_;
  Cut& cut_;
};

class Cutting final : public test::TransportAround {
 public:
  Cutting(std::unique_ptr<Transport> inner, Cut& cut) : TransportAround(std::move(inner)), cut_(cut) {}
  std::unique_ptr<MessageLane> message_lane() override {
    return std::make_unique<CuttingLane>(inner_->message_lane(), inner_->descriptor(), cut_);
  }

 private:
  Cut& cut_;
};

}  // namespace

TEST_CASE("bulk goes in place beside an RDMA connection's streams, both ways at once, wherever it lies at either end") {
  for (const std::string& over : fabrics()) {
    INFO(over);
    RdmaMemory& memory = (*test::rdma_fabric(over))->memory();
    const auto before = memory.figures();
    {
      Linked ends(rdma_ends(over), memory, test::test_seed());
      {
        Talk talk(ends.client, ends.server, 60, test::test_seed());
        for (auto& thread : talk.threads) thread.join();
        talk.threads.clear();
        INFO(ends.client.wrong, ends.server.wrong);
        CHECK(talk.right[0]);
        CHECK(talk.right[1]);
      }
      CHECK(ends.client.losses + ends.server.losses == 0);
      CHECK(ends.client.link.lane_bytes() > (40u << 20));
      CHECK(ends.client.link.lane_bytes() == ends.server.link.lane_bytes());
      // What lay in memory of no fabric's went with the streams.
      CHECK(ends.client.link.bulk_bytes() > ends.client.link.lane_bytes() + (10u << 20));
    }
    CHECK(memory.figures().registrations > before.registrations);
    CHECK(memory.figures().registered_bytes == 0);
  }
}

TEST_CASE("streams stay whole when the connection is cut in the middle of a stripe, by whichever end") {
  for (const std::string& over : fabrics()) {
    RdmaMemory& memory = (*test::rdma_fabric(over))->memory();
    unsigned cuts = 0;
    uint64_t by_lane = 0;
    Cut cut;
    for (uint64_t seed = test::test_seed(); seed < test::test_seed() + 4; ++seed) {
      INFO(over, ", seed ", seed);
      std::mt19937_64 random(seed);
      auto make = [&] {
        auto ends = rdma_ends(over);
        auto& cuts = random() % 2 ? ends.first : ends.second;
        cuts = std::make_unique<Cutting>(std::move(cuts), cut);
        cut.stripes = 1 + int(random() % 6);
        return ends;
      };
      Linked ends(make(), memory, seed);
      Link &client = ends.client.link, &server = ends.server.link;
      Talk talk(ends.client, ends.server, 40, seed);
      while (talk.running != 0) {
        while (talk.running != 0 && client.state() == Link::State::attached && server.state() == Link::State::attached)
          std::this_thread::yield();
        if (talk.running == 0) break;
        uint64_t client_received = client.detach(), server_received = server.detach();
        // Every third time over TCP, which has no such lane.
        auto next = ++cuts % 3 == 0 ? test::pair_kinds()[0].make(seed) : make();
        if (cuts % 3 == 0) {
          REQUIRE(server.attach(std::move(next.second), client_received));
          REQUIRE(client.attach(std::move(next.first), server_received));
          CHECK(client.lanes() == 0);
          client_received = client.detach(), server_received = server.detach();
          next = make();
        }
        INFO(server.loss(), client.loss());
        REQUIRE(server.attach(std::move(next.second), client_received));
        REQUIRE(client.attach(std::move(next.first), server_received));
      }
      for (auto& thread : talk.threads) thread.join();
      talk.threads.clear();
      INFO(ends.client.wrong, ends.server.wrong);
      CHECK(talk.right[0]);
      CHECK(talk.right[1]);
      by_lane += client.lane_bytes();
    }
    MESSAGE(over, ": ", cut.in_the_middle.load(), " cuts");
    CHECK(cut.in_the_middle >= 10);
    CHECK(by_lane > (20u << 20));
    CHECK(memory.figures().registered_bytes == 0);
  }
}

TEST_CASE("where memory cannot be registered bulk goes through the windows, whole, and the pieces are counted") {
  if (fabrics().empty()) return;
  setenv("UCX_TLS", "tcp", 1);
  auto fabric = transport::RdmaFabric::open(test::rdma_plugin(), false, std::make_shared<RdmaMemory>(0));
  unsetenv("UCX_TLS");
  REQUIRE(fabric.has_value());
  RdmaMemory& memory = (*fabric)->memory();
  Linked ends(test::rdma_ends(*fabric), memory, test::test_seed());
  {
    Talk talk(ends.client, ends.server, 30, test::test_seed());
    for (auto& thread : talk.threads) thread.join();
    talk.threads.clear();
    INFO(ends.client.wrong, ends.server.wrong);
    CHECK(talk.right[0]);
    CHECK(talk.right[1]);
  }
  CHECK(memory.figures().refused > 0);
  CHECK(memory.figures().registrations == 0);
  CHECK(ends.client.losses + ends.server.losses == 0);
}

TEST_CASE("stripes that cannot be end the set, and not a byte of them lands outside of what is expected") {
  constexpr uint32_t kWhole = transport::rdma::kStripeBytes, kSet = wire::kOwnLaneSet;
  constexpr size_t kPart = kWhole + 100;
  struct Case {
    const char* why;
    std::vector<wire::StripeHeader> stripes;
  };
  auto stripe = [](uint64_t position, uint32_t bytes, uint32_t set = wire::kOwnLaneSet) {
    return wire::StripeHeader{.lane_set = set, .position = position, .bytes = bytes};
  };
  const Case cases[] = {
      {"a stripe of no lane", {stripe(1000, kWhole, 8)}},
      {"an empty stripe", {stripe(1000, 0)}},
      {"a stripe of bytes that have come", {stripe(999, kWhole)}},
      {"a stripe of bytes that have come", {stripe(0, 1)}},
      {"a stripe of another length than its place", {stripe(1001, kWhole)}},
      {"a stripe of another length than its place", {stripe(1000, kWhole - 1)}},
      {"a stripe of another length than its place", {stripe(1000 + kWhole, kWhole)}},  // behind the part's end
      {"a stripe twice", {stripe(1000, kWhole), stripe(1000, kWhole)}},
  };
  for (const std::string& over : fabrics()) {
    RdmaMemory& offered = (*test::rdma_fabric(over))->memory();
    for (const Case& hostile : cases) {
      INFO(over, ": ", std::string(hostile.why));
      auto ends = rdma_ends(over);
      std::shared_ptr<transport::Transport> near = std::move(ends.first);
      LaneSet set(near, near->message_lane(), kSet, false);
      std::atomic<bool> over_told{false};
      REQUIRE(set.start({.sent = [](uint64_t, bool) {}, .over = [&] { over_told = true; }}));
      std::vector<std::byte> memory(kPart + kWhole, std::byte(9)), bytes(kWhole);
      offered.offer(memory.data(), memory.size());
      set.expect(1000, kPart);
      std::atomic<bool> done{false};
      std::thread peer([&] {
        auto lane = ends.second->message_lane();
        auto say = [&](const wire::StripeHeader& header) {
          if (!lane->begin_sending(header, {bytes.data(), header.bytes})) return;
          while (!done && lane->sending() == MessageLane::Outcome::under_way) std::this_thread::yield();
        };
        say(stripe(0, 0));
        for (const auto& header : hostile.stripes) say(header);
        lane->finish();
      });
      IoResult got = set.receive(1000, std::span(memory).first(kPart), LaneSet::Order::any, [] { return false; });
      CHECK(got.status == IoStatus::would_block);
      CHECK(set.closed());
      CHECK(set.fault() == hostile.why);
      done = true;
      peer.join();
      set.finish();
      CHECK(over_told);
      for (size_t i = kPart; i < memory.size(); ++i)
        if (memory[i] != std::byte(9)) FAIL("a byte at ", i);
      CHECK(offered.forget(memory.data(), kLimit));
    }
  }
}
