// Two links that talk both ways at once, with every byte of it checked.
#pragma once

#include <doctest/doctest.h>

#include <atomic>
#include <cstdlib>
#include <cstring>
#include <functional>
#include <memory>
#include <mutex>
#include <random>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include "protocol/link/link.hpp"
#include "protocol/transport/frame_receiver.hpp"

namespace gpuwire::test {

using link::Link;

constexpr size_t kInRing = 4096;
constexpr link::LinkLimits kLimits{
    .ring_bytes = 1 << 16, .bulk_bytes_max = 8 << 20, .bulk_in_ring_max = kInRing, .lane_part_bytes_min = 64 << 10};
inline std::byte expected_byte(uint64_t frame, size_t at) { return std::byte(frame * 131 + at * 7 + (at >> 9)); }

// One end: a thread appends frames, another takes those of the peer's apart.
class End {
 public:
  End(std::unique_ptr<transport::Transport> first, wire::Sender peer, bool comes_back,
      const link::LinkLimits& limits = kLimits)
      : link(std::move(first), limits), peer_(peer), comes_back_(comes_back) {
    link.outlive_connections();
    link.observe([this](Link::State state) { losses += state == Link::State::detached; });
    REQUIRE(link.begin_parts(comes_back));
  }
  ~End() { link.end(); }

  void send(unsigned frames, uint64_t seed) {
    std::mt19937_64 random(seed);
    for (uint64_t number = 1; number <= frames; ++number) {
      size_t bytes = random() % 3 == 0 ? random() % kInRing : random() % bulk_bytes_max;
      auto bulk = memory(bytes);
      for (size_t i = 0; i < bytes; ++i) bulk.get()[i] = expected_byte(number, i);
      append(number, bulk, bytes);
      if (random() % 3 == 0) push();
    }
    push();
    all_sent = true;
  }

  // Reads frames until so many have come at both ends, and both ends' send() have ended: a connection that is cut
  // before makes an end send again. False: something is wrong with them.
  bool receive(unsigned frames, uint64_t seed, const End& peer) {
    std::mt19937_64 random(seed);
    transport::FrameReceiver receiver(link, peer_);
    uint64_t number = 0;
    // Who sends needs acknowledgements, and a peer that reads what it sends: of bulk that is thrown away, too, and the
    // end of a connection.
    for (;;) {
      all_received = number == frames && receiver.bulk_left() == 0;
      if (all_received && all_sent && peer.all_sent && peer.all_received) return true;
      transport::Received got = receiver.next(std::chrono::milliseconds(50));
      if (got == transport::Received::nothing) {
        take_over(receiver);  // bulk that was thrown away
        link.pump();          // an acknowledgement that the connection would not take
        continue;
      }
      if (got != transport::Received::frame) {
        wrong = receiver.reason();
        return false;
      }
      take_over(receiver);
      auto kind = wire::FrameKind(receiver.header().kind);
      if (kind == wire::FrameKind::acknowledge) continue;
      ++number;
      // Whole, in pieces, or thrown away.
      const size_t bytes = receiver.bulk_left();
      auto kept = memory(bytes);
      std::span<std::byte> bulk(kept.get(), bytes);
      unsigned how = unsigned(random() % 4);
      if (how == 3) continue;
      for (size_t at = 0; at < bulk.size();) {
        size_t piece = how == 0 ? bulk.size() : std::min<size_t>(bulk.size() - at, 1 + random() % (300 << 10));
        if (!receiver.read_bulk(bulk.subspan(at, piece))) {
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
      take_over(receiver);
    }
  }

  // Everything up to here is this end's, so the other one's may forget it: a peer that waits for room would wait for
  // ever for what nobody says of the last bulk.
  void take_over(const transport::FrameReceiver& receiver) {
    if (receiver.bulk_left() == 0 && link.consumed(link.received())) link.pump();
  }

  void append(uint64_t number, const std::shared_ptr<std::byte>& bulk, size_t bulk_bytes) {
    bool external = bulk_bytes > kInRing;
    size_t bytes = sizeof(wire::FrameHeader) + (external ? 0 : bulk_bytes);
    for (;;) {
      uint64_t seen;
      {
        std::unique_lock lock(link);
        if (std::byte* at = link.reserve(bytes, external ? bulk_bytes : 0, 0)) {
          wire::FrameHeader header{.kind = uint8_t(comes_back_ ? wire::FrameKind::posted : wire::FrameKind::notice),
                                   .ordinal = 1,
                                   .sequence = number,
                                   .bulk_bytes = bulk_bytes};
          std::memcpy(at, &header, sizeof header);
          if (!external && bulk_bytes != 0) std::memcpy(at + sizeof header, bulk.get(), bulk_bytes);
          link::ExternalBulk outside{bulk.get(), bulk_bytes, nullptr, bulk};
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
  // Where bulk lies that is sent, and that is received. Before send() and receive().
  std::function<std::shared_ptr<std::byte>(size_t bytes)> memory = [](size_t bytes) {
    return std::shared_ptr<std::byte>(new std::byte[bytes + 1], std::default_delete<std::byte[]>());
  };
  size_t bulk_bytes_max = 1200 << 10;
  std::atomic<unsigned> losses{0};
  std::atomic<bool> all_sent{false}, all_received{false};
  std::string wrong;

 private:
  const wire::Sender peer_;
  const bool comes_back_;
};

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
    if (!threads.empty()) {  // a test that has failed
      client.link.end();
      server.link.end();
    }
    for (auto& thread : threads) thread.join();
  }
};

}  // namespace gpuwire::test
