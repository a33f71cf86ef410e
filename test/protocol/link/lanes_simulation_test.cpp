// Two links with lanes on one thread and simulated connections: what is under way when something breaks is decided by a
// seed, and a state in which nothing moves any more is found without a clock.
#include <doctest/doctest.h>

#include <algorithm>
#include <cstdlib>
#include <cstring>
#include <list>
#include <optional>
#include <random>
#include <vector>

#include "protocol/link/link.hpp"
#include "protocol/transport/simulated.hpp"
#include "test/protocol/link/transport_around.hpp"
#include "test/protocol/transport/pairs.hpp"

using namespace gpuwire;
using link::GivingUp;
using link::LaneSet;
using link::Link;
using transport::IoResult;
using transport::IoStatus;

namespace {

constexpr size_t kInRing = 128, kStripeBytes = 512, kBulkBytesMax = 6 << 10;
constexpr link::LinkLimits kLimits{
    .ring_bytes = 8 << 10, .bulk_bytes_max = 20 << 10, .bulk_in_ring_max = kInRing, .lane_part_bytes_min = 700};
constexpr unsigned kFrames = 12;      // that each side sends
constexpr unsigned kLanesMost = 4;    // of a set
constexpr unsigned kDepthMax = 3;     // of what happens inside of what happens
constexpr unsigned kTurns = 12;       // between two looks at whether anything has moved, at most
constexpr unsigned kStillMax = 3000;  // looks in which nothing has: more than any delay of a connection takes

struct Counts {
  uint64_t connections = 0, sets = 0, lane_bytes = 0, waits = 0, lost_unnoticed = 0;
};

// The world around two links. One step is one call of one of them; inside each call of a connection, where no lock is
// held, others have their turns, as other threads would.
class World {
 public:
  explicit World(uint64_t seed)
      : random_(seed),
        faults_left_(unsigned(random_() % 12)),
        ends_(connection()),
        client_(*this, std::move(ends_.first), true),
        server_(*this, std::move(ends_.second), false) {}
  ~World() {
    client_.link.end();
    server_.link.end();
    settle();
  }

  // Empty: everything has come, whole. Else what is wrong.
  std::string run(Counts& counts) {
    while (wrong_.empty() && !(client_.done() && server_.done())) step();
    counts.connections += connections_;
    counts.sets += set_number_;
    counts.lane_bytes += client_.link.lane_bytes();
    counts.waits += waits_;
    counts.lost_unnoticed += lost_unnoticed_;
    return wrong_;
  }

 private:
  class Watched;
  struct Running {
    std::shared_ptr<LaneSet> set;
    bool turning[kLanesMost] = {};
  };

  // One side of the session: frames that it sends, and those that it takes apart.
  struct Party {
    Party(World& around, std::unique_ptr<transport::Transport> first, bool client)
        : world(around), is_client(client), link(std::move(first), kLimits) {
      link.outlive_connections();
      if (!link.begin_parts(is_client)) std::abort();
    }
    bool all_left() const {
      std::lock_guard lock(link);
      return link.everything_sent();
    }
    bool all_sent() const { return appended == kFrames && all_left(); }
    bool done() const { return all_sent() && link.sent(0) && come == kFrames && left == 0; }
    std::string state() const {
      return std::string(is_client ? "client" : "server") +
             (link.state() == Link::State::attached ? " attached" : " detached") + ", appended " +
             std::to_string(appended) + ", has " + std::to_string(come) + (all_sent() ? "" : ", not all sent") +
             ", lanes " + std::to_string(link.lanes());
    }
    static std::byte byte_of(uint64_t number, size_t at) { return std::byte(number * 131 + at * 7 + (at >> 9)); }

    void append();
    void send();
    void receive();
    void take(size_t bytes);
    void finish_frame();

    World& world;
    const bool is_client;
    Link link;
    unsigned appended = 0;
    // Of the frame that is coming:
    wire::FrameHeader header;
    size_t header_have = 0;
    unsigned how = 0;
    std::vector<std::byte> bulk;
    size_t left = 0;
    unsigned come = 0;
    bool owes = false;  // an acknowledgement of frames, which nothing else may bring about
  };

  size_t below(size_t limit) { return size_t(random_() % limit); }
  bool chance(unsigned one_of) { return random_() % one_of == 0; }
  bool fault(unsigned one_of) {
    if (faults_left_ == 0 || !chance(one_of)) return false;
    --faults_left_;
    return true;
  }

  test::Ends connection();
  void step();
  bool others();
  void inside();
  void turn_of_a_lane();
  void something_breaks();
  void connect_again();
  void settle();
  void lanes_come();

  std::mt19937_64 random_;
  unsigned faults_left_;
  std::string wrong_;
  uint64_t moves_ = 0, moves_seen_ = 0, connections_ = 0, waits_ = 0, lost_unnoticed_ = 0;
  unsigned depth_ = 0, still_ = 0;
  uint32_t set_number_ = 0;
  std::list<Running> running_;
  test::Ends ends_;
  Party client_, server_;
  std::shared_ptr<LaneSet> client_lanes_;  // which the server has, and the client is about to have
  std::shared_ptr<transport::Transport> client_beside_;
};

class World::Watched final : public test::TransportAround {
 public:
  Watched(World& world, std::unique_ptr<Transport> inner) : TransportAround(std::move(inner)), world_(world) {}
  IoResult try_send(std::span<const iovec> pieces) noexcept override {
    return around([&] { return inner_->try_send(pieces); });
  }
  IoResult try_receive(std::span<std::byte> out) noexcept override {
    return around([&] { return inner_->try_receive(out); });
  }

 private:
  template <class Call>
  IoResult around(Call&& call) {
    world_.inside();
    IoResult result = call();
    if (result.status == IoStatus::ok) ++world_.moves_;
    world_.inside();
    return result;
  }
  World& world_;
};

test::Ends World::connection() {
  transport::SimulatedOptions options{.seed = random_()};
  options.piece_bytes_max = chance(3) ? 0 : 1 + below(chance(8) ? 64 : 4 << 10);
  options.window_bytes = 64 + below(8 << 10);
  options.delay_polls_max = unsigned(below(6));
  if (fault(2)) (chance(2) ? options.cut_first_to_second : options.cut_second_to_first) = below(16 << 10);
  auto ends = transport::simulated_pair(options);
  return {std::make_unique<Watched>(*this, std::move(ends.first)),
          std::make_unique<Watched>(*this, std::move(ends.second))};
}

// --- what a side does ----------------------------------------------------------------------------------------------

void World::Party::append() {
  if (appended == kFrames) return;
  uint64_t number = appended + 1;
  size_t bytes = world.chance(3) ? world.below(kInRing + 1) : world.below(kBulkBytesMax);
  bool external = bytes > kInRing;
  size_t in_ring = sizeof(wire::FrameHeader) + (external ? 0 : bytes);
  struct Bulk {
    std::vector<std::byte> bytes;
    std::function<void(size_t, std::span<std::byte>)> gather;
  };
  auto kept = std::make_shared<Bulk>();
  kept->bytes.resize(bytes);
  for (size_t i = 0; i < bytes; ++i) kept->bytes[i] = byte_of(number, i);
  kept->gather = [&from = kept->bytes](size_t offset, std::span<std::byte> out) {
    std::copy_n(from.begin() + ptrdiff_t(offset), out.size(), out.begin());
  };
  std::lock_guard lock(link);
  std::byte* at = link.reserve(in_ring, external ? bytes : 0, 0);
  if (!at) return;
  wire::FrameHeader out{.kind = uint8_t(is_client ? wire::FrameKind::posted : wire::FrameKind::notice),
                        .ordinal = 1,
                        .sequence = number,
                        .bulk_bytes = bytes};
  std::memcpy(at, &out, sizeof out);
  if (!external && bytes != 0) std::memcpy(at + sizeof out, kept->bytes.data(), bytes);
  bool gathered = world.chance(5);
  link::ExternalBulk outside{gathered ? nullptr : kept->bytes.data(), bytes, gathered ? &kept->gather : nullptr, kept};
  if (!link.publish(in_ring, external ? &outside : nullptr)) std::abort();
  ++appended;
  ++world.moves_;
}

// As one who sleeps until there is something to do: what nobody would be woken for is not done.
void World::Party::send() {
  if (!all_left() && (link.wait(transport::kWritable, std::chrono::nanoseconds(0)) & transport::kWritable)) link.pump();
}

void World::Party::receive() {
  IoResult got{IoStatus::would_block};
  size_t there = bulk.size() - left;
  std::byte elsewhere[1000];
  if (left == 0) {
    std::byte* at = reinterpret_cast<std::byte*>(&header) + header_have;
    got = link.try_receive({at, sizeof header - header_have});
  } else {
    size_t piece = how == 0 ? left : std::min(left, 1 + world.below(how == 1 ? 2500 : sizeof elsewhere));
    if (how <= 1) {
      got = link.receive_in_place({bulk.data() + there, piece});
    } else {
      got = link.try_receive({elsewhere, piece});
      if (got.status == IoStatus::ok) std::copy_n(elsewhere, got.bytes, bulk.data() + there);
    }
  }
  if (got.status == IoStatus::ok) take(got.bytes);
  if (link.damaged() || link.bad_acknowledgement()) world.wrong_ = "damaged: " + link.loss();
  bool now = owes && (got.status == IoStatus::would_block || world.chance(6));
  if (link.consumed(link.received(), now)) {
    owes = false;
    link.pump();
  }
}

void World::Party::take(size_t bytes) {
  ++world.moves_;
  if (left != 0) {
    left -= bytes;
    if (left == 0) finish_frame();
    return;
  }
  header_have += bytes;
  if (header_have < sizeof header) return;
  header_have = 0;
  if (header.magic != wire::FrameHeader::kMagic) world.wrong_ = "no frame";
  if (!world.wrong_.empty() || header.kind == uint8_t(wire::FrameKind::acknowledge)) return;
  bulk.assign(size_t(header.bulk_bytes), std::byte(0));
  left = bulk.size();
  how = unsigned(world.below(3));
  if (left == 0) finish_frame();
}

void World::Party::finish_frame() {
  ++come;
  owes = true;
  if (header.sequence != come) world.wrong_ = "another frame";
  for (size_t i = 0; i < bulk.size(); ++i)
    if (bulk[i] != byte_of(come, i)) {
      world.wrong_ = "byte " + std::to_string(i) + " of frame " + std::to_string(come);
      return;
    }
}

// --- what happens --------------------------------------------------------------------------------------------------

// At the top only: connections come here, and bytes are taken, by one at a time.
void World::step() {
  switch (below(8)) {
    case 0: client_.receive(); break;
    case 1: server_.receive(); break;
    case 2:
      if (client_.link.state() == Link::State::detached && chance(4)) connect_again();
      break;
    case 3: lanes_come(); break;
    default: others();
  }
}

// At the top also in place of sleeping. False: nothing has moved.
bool World::others() {
  uint64_t before = moves_;
  for (unsigned i = unsigned(below(kTurns)) + 1; i != 0; --i) {
    Party& one = chance(2) ? client_ : server_;
    switch (below(8)) {
      case 0: one.append(); break;
      case 1: one.send(); break;
      case 2: something_breaks(); break;
      default: turn_of_a_lane();
    }
  }
  still_ = moves_ == std::exchange(moves_seen_, moves_) ? still_ + 1 : 0;
  if (depth_ == 0 && still_ >= kStillMax) {
    wrong_ = "nothing moves: " + client_.state() + ", " + server_.state();
    client_.link.end();
    server_.link.end();
    still_ = 0;
  }
  return moves_ != before;
}

void World::inside() {
  if (depth_ == kDepthMax || !chance(4)) return;
  ++depth_;
  ++waits_;
  others();
  --depth_;
}

void World::turn_of_a_lane() {
  if (running_.empty()) return;
  auto one = std::next(running_.begin(), ptrdiff_t(below(running_.size())));
  size_t lane = below(one->set->lanes());
  if (std::exchange(one->turning[lane], true)) return;
  if (one->set->turn(lane) && one->set->closed()) ++moves_;
  one->turning[lane] = false;
}

// What neither end of a connection has asked for, and what heartbeats do.
void World::something_breaks() {
  if (!running_.empty() && fault(300)) {
    Running& one = *std::next(running_.begin(), ptrdiff_t(below(running_.size())));
    one.set->close(chance(2));
    ++moves_;
  }
  if (fault(600)) {
    Party& one = chance(2) ? client_ : server_;
    auto transport = one.link.transport();
    if (one.link.give_up(*transport, "silence", one.is_client ? GivingUp(below(3)) : GivingUp::closes)) ++moves_;
  }
}

// Sets that have ended have done so when this returns, as if it had waited for their threads.
void World::settle() {
  for (auto one = running_.begin(); one != running_.end();) {
    if (!one->set->closed()) {
      ++one;
      continue;
    }
    for (size_t i = 0; i < one->set->lanes(); ++i) one->set->turn(i);
    one = running_.erase(one);
  }
}

// As the client's reconnector and the worker's resumption do.
void World::connect_again() {
  client_lanes_ = nullptr;
  client_beside_ = nullptr;
  server_.link.give_up(*server_.link.transport(), "another one takes its place", GivingUp::closes);
  settle();
  uint64_t client_received = client_.link.detach(), server_received = server_.link.detach();
  auto next = connection();
  bool first = server_.link.attach(std::move(next.second), client_received);
  if (!first || !client_.link.attach(std::move(next.first), server_received)) wrong_ = "an impossible position";
  ++connections_;
  ++moves_;
}

// The server has them first, and the client when it has been told so.
void World::lanes_come() {
  if (client_lanes_) {
    if (!chance(3)) return;
    auto set = std::exchange(client_lanes_, nullptr);
    running_.push_back({set});
    bool added = client_.link.add_lanes(*client_beside_, set);
    client_beside_ = nullptr;
    if (!added) running_.pop_back();
    ++moves_;
    return;
  }
  if (client_.link.lanes() != 0 || client_.link.state() != Link::State::attached ||
      server_.link.state() != Link::State::attached || client_.all_sent() || !chance(6))
    return;
  if (server_.link.lanes() != 0) ++lost_unnoticed_;
  std::vector<std::unique_ptr<transport::Transport>> near, far;
  for (size_t count = 1 + below(kLanesMost); count != 0; --count) {
    auto ends = connection();
    near.push_back(std::move(ends.first));
    far.push_back(std::move(ends.second));
  }
  ++set_number_;
  auto make = [this](std::vector<std::unique_ptr<transport::Transport>> lanes, bool client) {
    auto set = std::make_shared<LaneSet>(std::move(lanes), set_number_, client);
    set->simulate(kStripeBytes, [this] { return others(); });
    return set;
  };
  auto of_server = make(std::move(far), false);
  running_.push_back({of_server});
  if (server_.link.add_lanes(*server_.link.transport(), of_server)) {
    client_lanes_ = make(std::move(near), true);
    client_beside_ = client_.link.transport();
  } else {
    running_.pop_back();
  }
  ++moves_;
}

}  // namespace

TEST_CASE("seeded sessions with lanes end whole, whatever breaks at any byte, and never stand still") {
#if defined(__SANITIZE_ADDRESS__) || defined(__SANITIZE_THREAD__)
  uint64_t scenarios = 100;  // a sanitizer is slow, and finds in these what it finds in any
#else
  uint64_t scenarios = 400;  // the long form (test/long) has thousands
#endif
  if (const char* given = std::getenv("GPUWIRE_LANE_SCENARIOS")) scenarios = std::strtoull(given, nullptr, 10);
  Counts counts;
  for (uint64_t seed = test::test_seed(); seed < test::test_seed() + scenarios; ++seed) {
    World world(seed);
    std::string wrong = world.run(counts);
    INFO("seed ", seed, ": ", wrong);
    REQUIRE(wrong.empty());
  }
  MESSAGE(counts.connections << " new connections, " << counts.sets << " sets of lanes, " << counts.lane_bytes
                             << " bytes over them, " << counts.waits << " steps inside others, "
                             << counts.lost_unnoticed << " sets that replace one whose end is not known");
  CHECK(counts.connections > scenarios / 4);
  CHECK(counts.lane_bytes > scenarios * kBulkBytesMax);
}
