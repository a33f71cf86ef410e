#include <doctest/doctest.h>

#include <condition_variable>
#include <cstring>
#include <mutex>
#include <random>
#include <thread>
#include <utility>
#include <vector>

#include "protocol/link/lane_count.hpp"
#include "protocol/link/link.hpp"
#include "protocol/transport/frame_receiver.hpp"
#include "test/protocol/link/transport_around.hpp"
#include "test/protocol/transport/pairs.hpp"

using namespace gpuwire;
using link::LaneSet;
using link::Link;
using transport::IoResult;
using transport::IoStatus;

namespace {

constexpr size_t kInRing = 4096;
constexpr link::LinkLimits kLimits{
    .ring_bytes = 1 << 16, .bulk_bytes_max = 8 << 20, .bulk_in_ring_max = kInRing, .lane_part_bytes_min = 64 << 10};
constexpr size_t kLanes = 3;

const test::PairKind& kind(const char* name) {
  for (const auto& one : test::pair_kinds())
    if (one.name == name) return one;
  throw std::runtime_error(name);
}

// Breaks when it has sent so many bytes.
class Breaking final : public test::TransportAround {
 public:
  Breaking(std::unique_ptr<Transport> inner, uint64_t after) : TransportAround(std::move(inner)), left_(after) {}
  IoResult try_send(std::span<const iovec> pieces) noexcept override {
    iovec first = pieces[0];
    for (size_t i = 1; first.iov_len == 0 && i < pieces.size(); ++i) first = pieces[i];
    first.iov_len = std::min<uint64_t>(first.iov_len, left_);
    if (first.iov_len == 0) {
      inner_->shutdown();
      return {IoStatus::failed, 0, ECONNRESET};
    }
    IoResult result = inner_->try_send({&first, 1});
    left_ -= result.bytes;
    return result;
  }

 private:
  uint64_t left_;
};

std::byte expected_byte(uint64_t frame, size_t at) { return std::byte(frame * 131 + at * 7 + (at >> 9)); }

// One end: a thread appends frames, another takes those of the peer's apart.
class End {
 public:
  End(std::unique_ptr<transport::Transport> first, wire::Sender peer, bool comes_back)
      : link(std::move(first), kLimits), peer_(peer), comes_back_(comes_back) {
    link.outlive_connections();
    link.observe([this](Link::State state) { losses += state == Link::State::detached; });
    REQUIRE(link.begin_parts(comes_back));
  }
  ~End() { link.end(); }

  void send(unsigned frames, uint64_t seed) {
    std::mt19937_64 random(seed);
    for (uint64_t number = 1; number <= frames; ++number) {
      size_t bytes = random() % 3 == 0 ? random() % kInRing : random() % (1200 << 10);
      auto bulk = std::make_shared<std::vector<std::byte>>(bytes);
      for (size_t i = 0; i < bytes; ++i) (*bulk)[i] = expected_byte(number, i);
      append(number, bulk);
      if (random() % 3 == 0) push();
    }
    push();
    all_sent = true;
  }

  // Reads frames until so many have come, and both ends' send() have ended. False: something is wrong with them.
  bool receive(unsigned frames, uint64_t seed, const End& peer) {
    std::mt19937_64 random(seed);
    transport::FrameReceiver receiver(link, peer_);
    uint64_t number = 0;
    // Who sends needs acknowledgements, and a peer that reads what it sends: of bulk that is thrown away, too, and the
    // end of a connection.
    while (number < frames || !all_sent || !peer.all_sent) {
      transport::Received got = receiver.next(std::chrono::milliseconds(50));
      if (got == transport::Received::nothing) {
        link.pump();  // an acknowledgement that the connection would not take
        continue;
      }
      if (got != transport::Received::frame) {
        wrong = receiver.reason();
        return false;
      }
      if (link.consumed(link.received() - receiver.bulk_left())) link.pump();
      auto kind = wire::FrameKind(receiver.header().kind);
      if (kind == wire::FrameKind::acknowledge) continue;
      ++number;
      // Whole, in pieces, or thrown away.
      std::vector<std::byte> bulk(receiver.bulk_left());
      unsigned how = unsigned(random() % 4);
      // The last one is read: of bulk that is thrown away it is not known here when all has come.
      if (how == 3 && number != frames) continue;
      for (size_t at = 0; at < bulk.size();) {
        size_t piece = how == 0 ? bulk.size() : std::min<size_t>(bulk.size() - at, 1 + random() % (300 << 10));
        if (!receiver.read_bulk(std::span(bulk).subspan(at, piece))) {
          wrong = receiver.reason();
          return false;
        }
        at += piece;
      }
      for (size_t i = 0; i < bulk.size(); ++i) {
        if (bulk[i] == expected_byte(number, i)) continue;
        wrong = "byte " + std::to_string(i) + " of frame " + std::to_string(number);
        return false;
      }
    }
    return true;
  }

  void append(uint64_t number, const std::shared_ptr<std::vector<std::byte>>& bulk) {
    bool external = bulk->size() > kInRing;
    size_t bytes = sizeof(wire::FrameHeader) + (external ? 0 : bulk->size());
    for (;;) {
      uint64_t seen;
      {
        std::unique_lock lock(link);
        if (std::byte* at = link.reserve(bytes, external ? bulk->size() : 0, 0)) {
          wire::FrameHeader header{.kind = uint8_t(comes_back_ ? wire::FrameKind::posted : wire::FrameKind::notice),
                                   .ordinal = 1,
                                   .sequence = number,
                                   .bulk_bytes = bulk->size()};
          std::memcpy(at, &header, sizeof header);
          if (!external && !bulk->empty()) std::memcpy(at + sizeof header, bulk->data(), bulk->size());
          link::ExternalBulk outside{bulk->data(), bulk->size(), nullptr, bulk};
          if (!link.publish(bytes, external ? &outside : nullptr)) std::abort();
          return;
        }
        seen = link.room_changes();
      }
      link.pump();
      link.await_room(seen, std::chrono::milliseconds(5));
    }
  }

  // Returns when everything has left, whatever becomes of connections.
  void push() {
    uint64_t end;
    {
      std::lock_guard lock(link);
      end = link.appended();
    }
    while (!link.sent(end) && link.state() != Link::State::ended) {
      link.push(end, std::chrono::hours(1));
      if (!link.sent(end)) link.wait(transport::kWritable, std::chrono::milliseconds(2));
    }
  }

  Link link;
  std::atomic<unsigned> losses{0};
  std::atomic<bool> all_sent{false};
  std::string wrong;

 private:
  const wire::Sender peer_;
  const bool comes_back_;
};

std::shared_ptr<LaneSet> set_of(std::vector<std::unique_ptr<transport::Transport>> lanes, uint32_t number,
                                bool sends_first) {
  return std::make_shared<LaneSet>(std::move(lanes), number, sends_first);
}

// Lanes for both; false: their connection has gone meanwhile.
template <class Make>
void add_lanes(End& client, End& server, uint32_t number, Make&& make) {
  std::vector<std::unique_ptr<transport::Transport>> near, far;
  for (size_t i = 0; i < kLanes; ++i) {
    auto [one, other] = make();
    near.push_back(std::move(one));
    far.push_back(std::move(other));
  }
  auto of_client = client.link.transport(), of_server = server.link.transport();
  server.link.add_lanes(*of_server, set_of(std::move(far), number, false));
  client.link.add_lanes(*of_client, set_of(std::move(near), number, true));
}

struct Talk {
  End& client;
  End& server;
  unsigned frames;
  std::vector<std::thread> threads;
  std::atomic<unsigned> running{4};
  bool right[2] = {};

  Talk(End& one, End& other, unsigned count, uint64_t seed) : client(one), server(other), frames(count) {
    start([this, seed] { client.send(frames, seed); });
    start([this, seed] { server.send(frames, seed + 1); });
    start([this, seed] { right[0] = client.receive(frames, seed + 2, server); });
    start([this, seed] { right[1] = server.receive(frames, seed + 3, client); });
  }
  template <class Work>
  void start(Work work) {
    threads.emplace_back([this, work] {
      work();
      --running;
    });
  }
  ~Talk() {
    for (auto& thread : threads) thread.join();
  }
};

}  // namespace

TEST_CASE(
    "bulk arrives whole over lanes, both ways at once, into memory of any size and thrown away, on each kind of "
    "connection") {
  for (const char* name : {"tcp", "tls", "simulated"}) {
    INFO(std::string(name));
    auto make = [&] { return kind(name).make(test::test_seed()); };
    auto ends = make();
    End client(std::move(ends.first), wire::Sender::server, true),
        server(std::move(ends.second), wire::Sender::client, false);
    add_lanes(client, server, 1, make);
    bool right[2];
    {
      Talk talk(client, server, 60, test::test_seed());
      for (auto& thread : talk.threads) thread.join();
      talk.threads.clear();
      std::copy_n(talk.right, 2, right);
    }
    INFO(client.wrong, server.wrong);
    CHECK(right[0]);
    CHECK(right[1]);
    CHECK(client.losses + server.losses == 0);
    CHECK(client.link.lane_bytes() > (10u << 20));
    CHECK(client.link.lane_bytes() == server.link.lane_bytes());
    CHECK(client.link.lanes() == kLanes);
  }
}

TEST_CASE("streams stay whole when connections and lanes break at any byte") {
  unsigned cuts = 0;
  uint64_t over_lanes = 0;
  for (uint64_t seed = test::test_seed(); seed < test::test_seed() + 6; ++seed) {
    INFO("seed ", seed);
    std::mt19937_64 random(seed);
    auto make = [&] {
      auto ends = kind("tcp").make(seed);
      bool first = random() % 2;
      uint64_t after = random() % 2 ? random() % (4 << 20) : random() % (64 << 10);
      auto& breaks = first ? ends.first : ends.second;
      breaks = std::make_unique<Breaking>(std::move(breaks), after);
      return ends;
    };
    auto ends = make();
    End client(std::move(ends.first), wire::Sender::server, true),
        server(std::move(ends.second), wire::Sender::client, false);
    Talk talk(client, server, 40, seed);
    add_lanes(client, server, 1, make);
    for (uint32_t number = 2; talk.running != 0; ++number) {
      while (talk.running != 0 && client.link.state() == Link::State::attached &&
             server.link.state() == Link::State::attached)
        std::this_thread::yield();
      if (talk.running == 0) break;
      uint64_t client_received = client.link.detach(), server_received = server.link.detach();
      auto next = make();
      REQUIRE(server.link.attach(std::move(next.second), client_received));
      REQUIRE(client.link.attach(std::move(next.first), server_received));
      add_lanes(client, server, number, make);
      ++cuts;
    }
    for (auto& thread : talk.threads) thread.join();
    talk.threads.clear();
    INFO(client.wrong, server.wrong);
    CHECK(talk.right[0]);
    CHECK(talk.right[1]);
    CHECK(client.link.bytes_sent_again() + server.link.bytes_sent_again() > 0);
    over_lanes += client.link.lane_bytes();
  }
  MESSAGE(cuts << " cuts");
  CHECK(cuts > 20);
  CHECK(over_lanes > (2u << 20));
}

TEST_CASE("lanes that are lost with nothing under way take nothing with them") {
  auto make = [&] { return kind("tcp").make(1); };
  auto ends = make();
  End client(std::move(ends.first), wire::Sender::server, true),
      server(std::move(ends.second), wire::Sender::client, false);
  add_lanes(client, server, 1, make);
  {
    // The first word of the client's on each lane has come when the server may use them.
    auto lanes = kind("tcp").make(1);
    std::vector<std::unique_ptr<transport::Transport>> near, far;
    near.push_back(std::move(lanes.first));
    far.push_back(std::move(lanes.second));
    auto far_set = set_of(std::move(far), 2, false);
    auto of_client = client.link.transport(), of_server = server.link.transport();
    REQUIRE(server.link.add_lanes(*of_server, far_set));
    REQUIRE(client.link.add_lanes(*of_client, set_of(std::move(near), 2, true)));
    while (!far_set->can_send()) std::this_thread::yield();
    CHECK(client.link.lanes() == 1);
    far_set->close(false);
    while (client.link.lanes() + server.link.lanes() != 0) std::this_thread::yield();
  }
  Talk talk(client, server, 30, 5);
  for (auto& thread : talk.threads) thread.join();
  talk.threads.clear();
  CHECK(talk.right[0]);
  CHECK(talk.right[1]);
  CHECK(client.losses + server.losses == 0);
  CHECK(client.link.lane_bytes() == 0);
}

namespace {

wire::StripeHeader stripe(uint64_t position, uint32_t bytes, uint32_t set = 7) {
  return {.lane_set = set, .position = position, .bytes = bytes};
}

}  // namespace

TEST_CASE("stripes that cannot be end the set, and not a byte of them lands outside of what is expected") {
  constexpr uint32_t kWhole = wire::kStripeBytes;
  struct Case {
    const char* why;
    std::vector<wire::StripeHeader> stripes;
  };
  wire::StripeHeader strange = stripe(1000, kWhole);
  strange.magic = 1;
  const Case cases[] = {
      {"a stripe of no lane", {strange}},
      {"a stripe of no lane", {stripe(1000, kWhole, 8)}},
      {"a stripe that is too long", {stripe(1000, kWhole + 1)}},
      {"a stripe that is too long", {stripe(1000, ~0u)}},
      {"an empty stripe", {stripe(1000, 0)}},
      {"a stripe of bytes that have come", {stripe(999, kWhole)}},
      {"a stripe of bytes that have come", {stripe(0, 1)}},
      {"a stripe of another length than its place", {stripe(1001, kWhole)}},
      {"a stripe of another length than its place", {stripe(1000, kWhole - 1)}},
      {"a stripe of another length than its place", {stripe(1000 + kWhole, kWhole)}},  // the last one is shorter
      {"a stripe twice", {stripe(1000, kWhole), stripe(1000, kWhole)}},
  };
  for (const Case& hostile : cases) {
    INFO(std::string(hostile.why));
    auto ends = kind("tcp").make(1);
    std::vector<std::unique_ptr<transport::Transport>> lanes;
    lanes.push_back(std::move(ends.first));
    LaneSet set(std::move(lanes), 7, false);
    std::atomic<bool> over{false};
    REQUIRE(set.start({.sent = [](uint64_t, bool) {}, .over = [&] { over = true; }}));
    constexpr size_t kPart = wire::kStripeBytes + 100;
    // What a lane brings behind the part waits for another one to be announced.
    std::vector<std::byte> memory(kPart + 1000, std::byte(9));
    set.expect(1000, kPart);
    auto ready = stripe(0, 0);
    std::vector<std::byte> bytes(kWhole);
    std::thread peer([&] {
      auto say = [&](const void* data, size_t size) {
        iovec piece{const_cast<void*>(data), size};
        transport::send_all(*ends.second, {&piece, 1}, std::chrono::seconds(120));
      };
      say(&ready, sizeof ready);
      for (const auto& header : hostile.stripes) {
        say(&header, sizeof header);
        say(bytes.data(), std::min<size_t>(header.bytes, bytes.size()));
      }
    });
    IoResult got = set.receive(1000, std::span(memory).first(kPart), LaneSet::Order::any, [] { return false; });
    CHECK(got.status == IoStatus::would_block);
    CHECK(set.closed());
    CHECK(set.fault() == hostile.why);
    peer.join();
    set.finish();
    CHECK(over);
    for (size_t i = kPart; i < memory.size(); ++i) REQUIRE(memory[i] == std::byte(9));
  }
}

TEST_CASE("parts that cannot be damage the connection") {
  wire::FrameHeader frame{.kind = uint8_t(wire::FrameKind::posted), .sequence = 1, .bulk_bytes = 10'000};
  auto part = [](uint8_t way, uint64_t bytes, uint16_t magic = wire::PartHeader::kMagic) {
    return wire::PartHeader{.magic = magic, .way = way, .bytes = bytes};
  };
  for (auto header : {part(1, 0), part(2, 0), part(1, 10'001), part(2, 10'001), part(2, ~0ull), part(0, 100),
                      part(3, 100), part(1, 100, 1)}) {
    auto ends = kind("tcp").make(1);
    End server(std::move(ends.second), wire::Sender::client, false);
    iovec pieces[2] = {{&frame, sizeof frame}, {&header, sizeof header}};
    REQUIRE(transport::send_all(*ends.first, pieces, std::chrono::seconds(120)).status == IoStatus::ok);
    std::byte out[4096];
    size_t all = 0;
    while (server.link.state() == Link::State::attached) {
      server.link.wait(transport::kReadable, std::chrono::seconds(1));
      auto got = server.link.try_receive(out);
      if (got.status == IoStatus::ok) all += got.bytes;
    }
    CHECK(all <= sizeof frame);
    CHECK(server.link.damaged());
    CHECK(server.link.loss() == "bulk in a part that cannot be");
  }
}

TEST_CASE(
    "the headers of parts are found however the connection cuts its bytes, and what follows a part of the lanes is "
    "kept") {
  for (uint64_t seed = test::test_seed(); seed < test::test_seed() + 50; ++seed) {
    INFO("seed ", seed);
    std::mt19937_64 random(seed);
    std::vector<std::byte> connection, stream;
    struct ByLanes {
      size_t at, bytes;  // in the stream
    };
    std::vector<ByLanes> by_lanes;
    auto add = [](std::vector<std::byte>& to, const void* from, size_t bytes) {
      to.insert(to.end(), static_cast<const std::byte*>(from), static_cast<const std::byte*>(from) + bytes);
    };
    for (unsigned frame = 1; frame < 40; ++frame) {
      wire::FrameHeader header{.kind = uint8_t(wire::FrameKind::posted),
                               .sequence = frame,
                               .message_words = uint32_t(random() % 5),
                               .bulk_bytes = random() % 300};
      std::vector<std::byte> rest(header.message_words * 8 + header.bulk_bytes);
      for (auto& byte : rest) byte = std::byte(random());
      add(connection, &header, sizeof header);
      add(stream, &header, sizeof header);
      if (header.bulk_bytes <= 100) {
        add(connection, rest.data(), rest.size());
        add(stream, rest.data(), rest.size());
        continue;
      }
      add(connection, rest.data(), header.message_words * 8);
      add(stream, rest.data(), header.message_words * 8);
      for (size_t at = header.message_words * 8; at < rest.size();) {
        size_t bytes = 1 + random() % (rest.size() - at);
        bool lanes = random() % 2;
        wire::PartHeader part{
            .way = uint8_t(lanes ? wire::PartWay::lanes : wire::PartWay::here), .lane_set = 5, .bytes = bytes};
        add(connection, &part, sizeof part);
        if (lanes) by_lanes.push_back({stream.size(), bytes});
        else add(connection, rest.data() + at, bytes);
        add(stream, rest.data() + at, bytes);
        at += bytes;
      }
    }
    link::AcknowledgementScanner scanner;
    link::IncomingParts parts(scanner);
    REQUIRE(parts.begin(100));
    std::vector<std::byte> got;
    size_t at = 0, lanes = 0;
    std::byte out[500];
    while (at < connection.size() || parts.keeps() || parts.lanes_left()) {
      REQUIRE_FALSE(parts.faulty());
      if (size_t left = parts.lanes_left()) {
        REQUIRE(lanes < by_lanes.size());
        REQUIRE(got.size() == by_lanes[lanes].at);
        REQUIRE(left == by_lanes[lanes].bytes);
        add(got, stream.data() + got.size(), left);
        parts.came_over_lanes(left);
        ++lanes;
        continue;
      }
      auto room = parts.room(std::span(out).first(1 + random() % sizeof out));
      size_t bytes;
      if (parts.keeps()) {
        bytes = parts.take_cached(room);
      } else {
        bytes = std::min(room.size(), connection.size() - at);
        std::memcpy(room.data(), connection.data() + at, bytes);
        at += bytes;
      }
      size_t now = parts.take(room.first(bytes), [](uint64_t) {});
      if (now != 0) add(got, out, now);
    }
    CHECK(got == stream);
    CHECK(lanes == by_lanes.size());
  }
}

TEST_CASE("as many lanes are used as pay, and it is looked again now and then") {
  using std::chrono::nanoseconds;
  auto run = [](link::LaneCount& count, auto&& rate, unsigned parts) {
    for (unsigned i = 0; i < parts; ++i) count.sent(16 << 20, nanoseconds(int64_t((16 << 20) / rate(count.now()))));
  };
  SUBCASE("each lane adds as much: all") {
    link::LaneCount count(4);
    run(
        count, [](size_t lanes) { return double(lanes); }, 50);
    CHECK(count.now() == 4);
  }
  SUBCASE("one is as fast as four: one") {
    link::LaneCount count(4);
    run(
        count, [](size_t) { return 1.25; }, 50);
    CHECK(count.now() == 1);
  }
  SUBCASE("two fill the link: two, until it gets faster") {
    link::LaneCount count(4);
    double link_rate = 2;
    auto rate = [&](size_t lanes) { return std::min(double(lanes), link_rate); };
    run(count, rate, 50);
    CHECK(count.now() == 2);
    link_rate = 100;
    run(count, rate, 4 * (link::LaneCount::kTrialsUntilPoll + 8));
    CHECK(count.now() == 4);
  }
}
