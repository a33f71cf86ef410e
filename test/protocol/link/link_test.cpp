#include "protocol/link/link.hpp"

#include <doctest/doctest.h>

#include <atomic>
#include <cstring>
#include <functional>
#include <random>
#include <thread>
#include <utility>
#include <vector>

#include "protocol/transport/simulated.hpp"
#include "test/protocol/link/transport_around.hpp"
#include "test/protocol/transport/pairs.hpp"

using namespace gpuwire;
using link::Link;

namespace {

constexpr link::LinkLimits kSmall{.ring_bytes = 1 << 16, .bulk_bytes_max = 1 << 16};
constexpr size_t kExternalMin = 600;  // bulk from here on stays outside the ring

// One end of a link that outlives its connections, and what should come out of the other.
struct End {
  explicit End(std::unique_ptr<transport::Transport> first) : link(std::move(first), kSmall) {
    link.outlive_connections();
  }

  void note(const void* bytes, size_t count) {
    auto from = static_cast<const std::byte*>(bytes);
    sent.insert(sent.end(), from, from + count);
  }

  // False: there is no room.
  bool append(size_t bulk_bytes) {
    auto bulk = std::make_shared<std::vector<std::byte>>(bulk_bytes);
    for (size_t i = 0; i < bulk_bytes; ++i) (*bulk)[i] = std::byte(frames * 31 + i * 7 + (i >> 8));
    bool external = bulk_bytes >= kExternalMin;
    size_t bytes = sizeof(wire::FrameHeader) + (external ? 0 : bulk_bytes);
    std::unique_lock lock(link);
    std::byte* at = link.reserve(bytes, external ? bulk_bytes : 0, 0);
    if (!at) return false;
    wire::FrameHeader header{.kind = uint8_t(wire::FrameKind::posted), .sequence = ++frames, .bulk_bytes = bulk_bytes};
    std::memcpy(at, &header, sizeof header);
    if (!external && bulk_bytes != 0) std::memcpy(at + sizeof header, bulk->data(), bulk_bytes);
    link::ExternalBulk outside{bulk->data(), bulk_bytes, nullptr, bulk};
    REQUIRE(link.publish(bytes, external ? &outside : nullptr));
    note(&header, sizeof header);
    note(bulk->data(), bulk_bytes);
    return true;
  }

  // Takes what is there, at most so much. False: nothing.
  bool take(size_t bytes_max, bool acknowledge) {
    std::vector<std::byte> bytes(bytes_max);
    auto got = link.try_receive(bytes);
    if (got.status != transport::IoStatus::ok) return false;
    received.insert(received.end(), bytes.begin(), bytes.begin() + ptrdiff_t(got.bytes));
    REQUIRE(link.received() == received.size());
    CHECK_FALSE(link.bad_acknowledgement());
    wire::FrameHeader header{.kind = uint8_t(wire::FrameKind::acknowledge), .sequence = received.size()};
    if (link.consumed(received.size(), acknowledge)) note(&header, sizeof header);
    return true;
  }

  Link link;
  uint64_t frames = 0;
  std::vector<std::byte> sent, received;
};

void reconnect(End& one, End& other, test::Ends next) {
  uint64_t one_received = one.link.detach(), other_received = other.link.detach();
  REQUIRE(one.link.attach(std::move(next.first), other_received));
  REQUIRE(other.link.attach(std::move(next.second), one_received));
}

}  // namespace

TEST_CASE("both streams arrive whole and once, over connections that break at every byte") {
  for (uint64_t seed = test::test_seed(); seed < test::test_seed() + 3; ++seed) {
    std::mt19937_64 random(seed);
    // Breaks after so many bytes in one direction.
    auto connection = [&](uint64_t cut) {
      bool first = random() % 2;
      return transport::simulated_pair({.seed = random(),
                                        .piece_bytes_max = 97,
                                        .window_bytes = 4096,
                                        .delay_polls_max = unsigned(random() % 3),
                                        .cut_first_to_second = first ? cut : ~0ull,
                                        .cut_second_to_first = first ? ~0ull : cut});
    };
    auto first = connection(~0ull);
    End one(std::move(first.first)), other(std::move(first.second));
    size_t full = 0;
    for (uint64_t cut = 0; cut < 1500; ++cut) {
      INFO("seed ", seed, ", cut ", cut);
      reconnect(one, other, connection(cut));
      while (one.link.state() == Link::State::attached && other.link.state() == Link::State::attached) {
        for (End* end : {&one, &other}) {
          full += !end->append(random() % 4 ? random() % 40 : random() % 3000);
          end->link.pump();
          end->take(1 + random() % 200, random() % 16 == 0);
        }
      }
    }
    reconnect(one, other, connection(~0ull));
    for (bool moved = true; moved;) {
      moved = false;
      for (End* end : {&one, &other}) {
        end->link.pump();
        moved |= end->link.wait(transport::kReadable, transport::Nanoseconds(0)) != 0 && end->take(4096, false);
      }
    }
    CHECK(one.sent == other.received);
    CHECK(other.sent == one.received);
    CHECK(one.frames > 1000);
    CHECK(one.link.bytes_sent_again() > 0);
    CHECK(one.link.bytes_sent() >= one.sent.size());
  }
}

TEST_CASE("threads that send, receive and wait on both ends notice nothing of connections that are replaced") {
  uint64_t seed = test::test_seed();
  INFO("seed ", seed);
  std::mt19937_64 random(seed);
  const auto& kinds = test::pair_kinds();
  auto connection = [&] { return kinds[random() % kinds.size()].make(random()); };
  auto first = connection();
  End one(std::move(first.first)), other(std::move(first.second));
  constexpr uint64_t kFrames = 1500;
  constexpr unsigned kReplacements = 5;
  constexpr transport::Nanoseconds kWait = std::chrono::seconds(1);
  std::atomic<unsigned> busy{4}, replaced{0};
  // The receiver alone notes acknowledgements and the sender alone frames, so their order is not known here: frames are
  // compared instead.
  std::vector<std::byte> frames_of[2];
  auto send = [&](End& end, std::vector<std::byte>& frames, uint64_t own_seed) {
    std::mt19937_64 sizes(own_seed);
    for (uint64_t i = 0; i < kFrames; ++i) {
      // However slowly connections are replaced: some are while there is something left to send.
      for (unsigned so_far = replaced; so_far < i * kReplacements / kFrames; so_far = replaced) replaced.wait(so_far);
      size_t bulk_bytes = sizes() % 8 ? sizes() % 300 : sizes() % 20'000;
      auto bulk = std::make_shared<std::vector<std::byte>>(bulk_bytes, std::byte(i));
      bool external = bulk_bytes >= kExternalMin;
      for (;;) {
        end.link.lock();
        uint64_t seen = end.link.room_changes();
        std::byte* at =
            end.link.reserve(sizeof(wire::FrameHeader) + (external ? 0 : bulk_bytes), external ? bulk_bytes : 0, 0);
        if (at) {
          wire::FrameHeader header{.kind = uint8_t(wire::FrameKind::posted), .sequence = i, .bulk_bytes = bulk_bytes};
          std::memcpy(at, &header, sizeof header);
          if (!external && bulk_bytes != 0) std::memcpy(at + sizeof header, bulk->data(), bulk_bytes);
          link::ExternalBulk outside{bulk->data(), bulk_bytes, nullptr, bulk};
          end.link.publish(sizeof header + (external ? 0 : bulk_bytes), external ? &outside : nullptr);
          auto bytes = std::as_bytes(std::span(&header, 1));
          frames.insert(frames.end(), bytes.begin(), bytes.end());
          frames.insert(frames.end(), bulk->begin(), bulk->end());
        }
        uint64_t end_of_it = end.link.appended();
        end.link.unlock();
        if (at) {
          end.link.push(end_of_it, kWait);
          break;
        }
        end.link.await_room(seen, kWait);
      }
    }
    --busy;
  };
  std::vector<std::byte> received[2];
  auto receive = [&](End& end, std::vector<std::byte>& into) {
    std::vector<std::byte> buffer(8192);
    std::vector<std::byte> pending;
    uint64_t frames = 0;
    // Acknowledgements for this end's sender come here, too.
    for (bool counted = false; busy != 0;) {
      if (frames == kFrames && !std::exchange(counted, true)) --busy;
      auto got = end.link.try_receive(std::span(buffer).first(1 + frames % buffer.size()));
      if (got.status == transport::IoStatus::would_block) {
        // The other end may wait for room, and a connection that was full may have left something behind.
        end.link.consumed(end.link.received(), true);
        end.link.pump();
        end.link.wait(transport::kReadable, std::chrono::milliseconds(20));
        continue;
      }
      REQUIRE(got.status == transport::IoStatus::ok);
      if (end.link.consumed(end.link.received(), frames % 4 == 0)) end.link.pump();
      pending.insert(pending.end(), buffer.begin(), buffer.begin() + ptrdiff_t(got.bytes));
      wire::FrameHeader header;
      while (pending.size() >= sizeof header) {
        std::memcpy(&header, pending.data(), sizeof header);
        if (pending.size() < sizeof header + header.bulk_bytes) break;
        auto behind = pending.begin() + ptrdiff_t(sizeof header + header.bulk_bytes);
        if (wire::FrameKind(header.kind) == wire::FrameKind::posted) {
          into.insert(into.end(), pending.begin(), behind);
          ++frames;
        }
        pending.erase(pending.begin(), behind);
      }
    }
  };
  std::thread threads[] = {
      std::thread([&] { send(one, frames_of[0], seed); }), std::thread([&] { send(other, frames_of[1], seed + 1); }),
      std::thread([&] { receive(other, received[0]); }), std::thread([&] { receive(one, received[1]); })};
  while (busy != 0) {
    // Some bytes pass, then the connection is cut, by one end or by itself.
    uint64_t until = one.link.bytes_sent() + other.link.bytes_sent() + 200'000;
    for (int looks = 0; busy != 0 && looks < 200 && one.link.bytes_sent() + other.link.bytes_sent() < until; ++looks)
      one.link.wait(transport::kWoken, std::chrono::milliseconds(1));
    reconnect(one, other, connection());
    ++replaced;
    replaced.notify_all();
  }
  for (auto& thread : threads) thread.join();
  CHECK(received[0] == frames_of[0]);
  CHECK(received[1] == frames_of[1]);
  CHECK(replaced >= kReplacements - 1);
}

TEST_CASE("bulk that its owner has taken back is not read again, and zeros stand for it") {
  auto ends = transport::simulated_pair({});
  End one(std::move(ends.first)), other(std::move(ends.second));
  std::vector<std::byte> memory(5000, std::byte{1});
  unsigned gathered = 0;
  std::function<void(size_t, std::span<std::byte>)> gather = [&](size_t offset, std::span<std::byte> out) {
    ++gathered;
    std::memcpy(out.data(), memory.data() + offset, out.size());
  };
  uint64_t end = 0;
  {
    std::unique_lock lock(one.link);
    std::byte* at = one.link.reserve(sizeof(wire::FrameHeader), memory.size(), 0);
    wire::FrameHeader header{.kind = uint8_t(wire::FrameKind::posted), .sequence = 1, .bulk_bytes = memory.size()};
    std::memcpy(at, &header, sizeof header);
    link::ExternalBulk outside{nullptr, memory.size(), &gather, nullptr};
    REQUIRE(one.link.publish(sizeof header, &outside));
    end = one.link.appended();
  }
  CHECK(one.link.pump());
  CHECK(one.link.sent(end));
  CHECK(one.link.holds_external());
  CHECK(gathered == 1);
  // The connection is lost with half of it.
  while (other.received.size() < 2500) other.take(2500 - other.received.size(), false);
  one.link.forget_external(end);
  reconnect(one, other, transport::simulated_pair({}));
  CHECK(gathered == 1);
  while (other.received.size() < end) other.take(5000, false);
  for (size_t i = sizeof(wire::FrameHeader); i < other.received.size(); ++i)
    REQUIRE(other.received[i] == std::byte(i < 2500));
}

TEST_CASE("gathered bulk goes on from any offset over the next connection") {
  auto ends = transport::simulated_pair({});
  End one(std::move(ends.first)), other(std::move(ends.second));
  std::vector<std::byte> memory(700'000);
  for (size_t i = 0; i < memory.size(); ++i) memory[i] = std::byte(i * 7 + (i >> 9));
  std::function<void(size_t, std::span<std::byte>)> gather = [&](size_t offset, std::span<std::byte> out) {
    std::memcpy(out.data(), memory.data() + offset, out.size());
  };
  Link sender(std::move(transport::simulated_pair({}).first));
  sender.outlive_connections();
  {
    std::unique_lock lock(sender);
    std::byte* at = sender.reserve(sizeof(wire::FrameHeader), memory.size(), 0);
    wire::FrameHeader header{.kind = uint8_t(wire::FrameKind::posted), .sequence = 1, .bulk_bytes = memory.size()};
    std::memcpy(at, &header, sizeof header);
    link::ExternalBulk outside{nullptr, memory.size(), &gather, nullptr};
    REQUIRE(sender.publish(sizeof header, &outside));
  }
  std::mt19937_64 random(test::test_seed());
  while (other.received.size() < sizeof(wire::FrameHeader) + memory.size()) {
    uint64_t received = other.link.detach();
    sender.detach();
    auto next = transport::simulated_pair({.seed = random(), .window_bytes = 100'000});
    REQUIRE(sender.attach(std::move(next.first), received));
    REQUIRE(other.link.attach(std::move(next.second), 0));
    for (size_t left = 1 + random() % 60'000; left && other.take(left, false);) {
      left -= std::min<size_t>(left, other.received.size() - received);
      received = other.received.size();
      sender.pump();
    }
  }
  CHECK(std::equal(memory.begin(), memory.end(), other.received.begin() + sizeof(wire::FrameHeader)));
}

TEST_CASE("a peer that claims what it cannot have received is not attached") {
  auto ends = transport::simulated_pair({});
  End one(std::move(ends.first)), other(std::move(ends.second));
  REQUIRE(one.append(100));
  one.link.pump();
  while (other.take(1000, true)) {}
  other.link.pump();
  while (one.take(1000, false)) {}
  CHECK(one.link.acknowledged(132));
  one.link.detach();
  CHECK_FALSE(one.link.attach(std::move(transport::simulated_pair({}).first), 133));
  CHECK_FALSE(one.link.attach(std::move(transport::simulated_pair({}).first), 131));
  CHECK(one.link.state() == Link::State::detached);
  CHECK(one.link.attach(std::move(transport::simulated_pair({}).first), 132));
}

TEST_CASE("a link that is not to outlive its connection ends with it, and says how") {
  auto ends = transport::simulated_pair({});
  Link one(std::move(ends.first));
  ends.second->shutdown();
  std::byte byte;
  CHECK(one.try_receive({&byte, 1}).status == transport::IoStatus::closed);
  CHECK_FALSE(one.await_room(one.room_changes(), std::chrono::seconds(120)));
}

TEST_CASE("the end of the link wakes waiting threads, attached or not") {
  for (bool attached : {true, false}) {
    auto ends = transport::simulated_pair({});
    Link one(std::move(ends.first));
    one.outlive_connections();
    if (!attached) one.detach();
    uint64_t seen = one.room_changes();
    std::thread reader([&] {
      std::byte byte;
      while (one.try_receive({&byte, 1}).status == transport::IoStatus::would_block)
        one.wait(transport::kReadable, std::chrono::seconds(120));
    });
    std::thread sender([&] {
      while (one.await_room(seen, std::chrono::seconds(120)) && one.room_changes() == seen) {}
    });
    one.end();
    reader.join();
    sender.join();
    CHECK(one.state() == Link::State::ended);
  }
}

TEST_CASE("a wake that came while there was a connection ends the next wait though the connection has gone") {
  auto ends = transport::simulated_pair({});
  Link one(std::move(ends.first));
  one.outlive_connections();
  one.wake();
  one.detach();
  CHECK(one.wait(transport::kReadable | transport::kWoken, std::chrono::seconds(0)) == transport::kWoken);
}

// Does something of the test's in the middle of a wake-up, or while it sends.
struct Interrupted final : test::TransportAround {
  using TransportAround::TransportAround;
  void wake() noexcept override {
    TransportAround::wake();
    if (auto handler = std::exchange(in_wake, nullptr)) handler();
  }
  transport::IoResult try_send(std::span<const iovec> pieces) noexcept override {
    if (in_send) in_send();
    return TransportAround::try_send(pieces);
  }
  bool is_inside() noexcept override { return inside; }
  std::function<void()> in_wake, in_send;
  bool inside = false;
};

TEST_CASE("a thread whose wake-up a signal interrupts is inside, whoever gives the connection up meanwhile") {
  auto ends = transport::simulated_pair({});
  auto around = std::make_unique<Interrupted>(std::move(ends.first));
  Interrupted& connection = *around;
  Link link(std::move(around), kSmall);
  link.outlive_connections();
  {
    std::lock_guard lock(link);
    CHECK_FALSE(link.is_inside(true));
    connection.inside = true;
    CHECK(link.is_inside(false));
    connection.inside = false;
  }
  std::thread other;
  bool inside = false;
  // A handler that ends the program here may send nothing: the other thread waits for what this one holds, and holds
  // the link's lock.
  connection.in_wake = [&] {
    std::unique_lock lock(link, std::try_to_lock);  // as the goodbye does: a handler that waited would stand still
    CHECK(lock.owns_lock());
    other = std::thread([&] { link.give_up(connection, "a test", link::GivingUp::closes); });
    inside = link.is_inside(false);
  };
  link.wake();
  other.join();
  CHECK(inside);
  CHECK(link.state() == Link::State::detached);
}

TEST_CASE("an observer that a signal interrupts is inside") {
  auto ends = transport::simulated_pair({});
  Link link(std::move(ends.first), kSmall);
  link.outlive_connections();
  bool inside = false;
  link.observe([&](Link::State) {
    std::unique_lock lock(link, std::try_to_lock);
    CHECK(lock.owns_lock());
    inside = link.is_inside(false);
  });
  link.detach();
  CHECK(inside);
}

TEST_CASE("frames at the end leave while the lock is held, up to the first bulk outside the ring") {
  auto ends = transport::simulated_pair({.seed = test::test_seed()});
  auto around = std::make_unique<Interrupted>(std::move(ends.first));
  Interrupted& connection = *around;
  End one(std::move(around)), other(std::move(ends.second));
  REQUIRE(one.append(40));
  REQUIRE(one.append(kExternalMin));
  REQUIRE(one.append(20));
  unsigned sends = 0;
  connection.in_send = [&] {
    ++sends;
    CHECK(one.link.is_locked_by_this_thread());
  };
  {
    std::lock_guard lock(one.link);
    one.link.send_at_end();
    CHECK_FALSE(one.link.everything_sent());
  }
  CHECK(sends > 0);
  connection.in_send = nullptr;
  while (other.link.wait(transport::kReadable, transport::Nanoseconds(0)) && other.take(4096, false)) {}
  constexpr size_t kFrame = sizeof(wire::FrameHeader);
  CHECK(other.received.size() == kFrame + 40 + kFrame);
  CHECK(std::equal(other.received.begin(), other.received.end(), one.sent.begin()));
}

TEST_CASE("an observer's last notification holds, whichever of two threads is faster") {
  auto first = transport::simulated_pair({.seed = 1});
  Link link(std::move(first.first), kSmall);
  link.outlive_connections();
  std::atomic<Link::State> told{Link::State::attached};
  std::atomic<unsigned> inside{0}, together{0};
  link.observe([&](Link::State state) {
    together += inside.fetch_add(1);
    std::this_thread::yield();  // as long as it takes to tell others
    told = state;
    inside.fetch_sub(1);
  });
  std::unique_ptr<transport::Transport> peer = std::move(first.second);
  std::atomic<bool> over{false};
  // Finds each end, as who reads does.
  std::thread reader([&] {
    std::byte bytes[64];
    while (!over) {
      link.try_receive(bytes);
      std::this_thread::yield();
    }
  });
  for (int round = 0; round < 3000; ++round) {
    auto next = transport::simulated_pair({.seed = uint64_t(round)});
    peer->shutdown();
    while (link.state() == Link::State::attached) std::this_thread::yield();
    peer = std::move(next.second);
    REQUIRE(link.attach(std::move(next.first), 0));
    INFO("round ", round);
    // attach() has told, or somebody else has who was at it.
    while (inside != 0) std::this_thread::yield();
    CHECK(told == Link::State::attached);
    CHECK(link.state() == Link::State::attached);
  }
  over = true;
  reader.join();
  CHECK(together == 0);
}
