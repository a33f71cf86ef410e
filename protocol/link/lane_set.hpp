// The further connections of one connection of a session, and their threads: bulk in stripes, from memory into memory.
// README.md draws threads and locks.
#pragma once

#include <atomic>
#include <bitset>
#include <cstddef>
#include <cstdint>
#include <functional>
#include <memory>
#include <mutex>
#include <span>
#include <string>
#include <thread>
#include <vector>

#include "protocol/link/lane_count.hpp"
#include "protocol/threads/condition.hpp"
#include "protocol/transport/transport.hpp"
#include "protocol/wire/lanes.hpp"

namespace gpuwire::link {

using transport::IoResult;
using transport::IoStatus;
using transport::Nanoseconds;

// All lanes live and end together: bytes that were lost with a lane are unknown to both sides, so the link goes back to
// the position that its peer has received.
class LaneSet {
 public:
  // Told on a lane's thread, without a lock.
  struct Events {
    // Of the part that is being sent, everything before `position` has left. `all`: nobody reads its memory any more.
    std::function<void(uint64_t position, bool all)> sent;
    // Once, when the set is over: no thread touches anybody's memory any more.
    std::function<void()> over;
  };
  // `number` is the client's, other than of each set before. `sends_first`: the client's side, which says on every lane
  // that all of them are ready.
  LaneSet(std::vector<std::unique_ptr<transport::Transport>> lanes, uint32_t number, bool sends_first);
  // Without threads, before start(): another driver calls turn() for each lane until the set is over, on one thread. A
  // thread that waits for bytes calls `others`, which runs the lanes, instead of sleeping. False: nothing has moved.
  void simulate(size_t stripe_bytes, std::function<bool()> others);
  // Simulated: the work of a lane's thread between two sleeps; not inside another turn of the same lane. False: no
  // work.
  bool turn(size_t lane) noexcept;
  // Ends the set and waits for its threads. Not on one of them.
  ~LaneSet();
  LaneSet(const LaneSet&) = delete;
  LaneSet& operator=(const LaneSet&) = delete;

  // Once. False: the system gives no threads; over() has been or will be called, if any thread has started.
  bool start(Events events);

  uint32_t number() const { return number_; }
  size_t lanes() const { return lanes_.size(); }
  // How many of them the parts that are sent now go over.
  size_t lanes_in_use() const { return in_use_.load(std::memory_order_relaxed); }

  // --- sending: one part at a time; any thread ---------------------------------------------------------------------
  bool can_send() const { return can_send_.load(std::memory_order_acquire); }
  // The bytes of a part, which stay where they are until Events say that all have left or that the set is over. False:
  // it is over, or about to be.
  bool send(uint64_t position, std::span<const std::byte> part);

  // --- receiving: one thread at a time -----------------------------------------------------------------------------
  // A part of this many bytes begins at `position`, and all bytes before have been received.
  void expect(uint64_t position, uint64_t bytes);
  enum class Order : uint8_t {
    any,      // until `out` is full, or the set is over, or `stop` says so; asked at least once in kStopWait
    as_sent,  // only the next bytes; returns after about a millisecond without them. For memory that may be
              // different the next time
  };
  // Bytes of that part from `position` on, which is where the last call ended. would_block: none have come, or the set
  // is over.
  IoResult receive(uint64_t position, std::span<std::byte> out, Order order,
                   const std::function<bool()>& stop) noexcept;
  // Over all lanes, headers not counted.
  uint64_t bytes_received() const { return bytes_received_.load(std::memory_order_relaxed); }

  // --- the end: any thread -----------------------------------------------------------------------------------------
  // Does not wait: each lane's thread ends its connection. `resets`: as Transport::reset(), so that the peer does not
  // take it for the end of a program.
  void close(bool resets) noexcept;
  // Closed: waits for its threads, and for their reports. One thread at a time, none of the set's.
  void finish();
  bool closed() const { return closed_.load(std::memory_order_acquire); }
  // After Events::over, of a set that nobody has closed: how the first of its lanes ended; peer_closed: as Transport's.
  IoResult failure() const;
  bool peer_closed() const;
  // The peer broke the rules of lanes: why; else empty.
  std::string fault() const;
  // In a child after fork(): closes the descriptors; nothing else may be called after it. Async-signal-safe.
  void abandon_after_fork() noexcept;

 private:
  struct Lane {
    std::unique_ptr<transport::Transport> transport;
    std::thread thread;
    // The thread's own:
    wire::StripeHeader out_header;
    const std::byte* out_data = nullptr;
    size_t out_left = 0, out_header_left = 0;
    uint32_t out_stripe = 0;
    bool sending = false;
    wire::StripeHeader in_header;
    size_t in_have = 0;        // bytes of in_header
    size_t in_done = 0;        // bytes of the stripe
    bool in_taken = false;     // the stripe is one of the part that is expected
    bool ready = false;        // the peer has said so
    bool input_waits = false;  // nobody wants its bytes yet
    bool over = false;         // its connection has been ended
    // Set before the thread looks at changes_ for the last time, read after changes_ has grown: seq_cst, so one of the
    // two sees the other.
    std::atomic<bool> sleeps{false};
  };
  struct Outgoing {
    uint64_t position = 0;
    const std::byte* data = nullptr;
    size_t bytes = 0;
    uint32_t stripes = 0, next = 0, sent = 0, before = 0;  // before: all stripes up to this one have left
    std::bitset<wire::kStripesMax> left;
  };
  struct Incoming {
    uint64_t begin = 0, end = 0;
    std::bitset<wire::kStripesMax> taken;
  };

  void run(Lane& lane) noexcept;
  bool send_some(Lane& lane) noexcept;
  bool take_stripe(Lane& lane) noexcept;
  void stripe_sent(Lane& lane) noexcept;
  bool receive_some(Lane& lane) noexcept;
  bool header_complete(Lane& lane) noexcept;
  bool claim_stripe(Lane& lane) noexcept;
  std::span<std::byte> place_for(Lane& lane) noexcept;
  void placed(Lane& lane, size_t bytes) noexcept;
  void sleep(Lane& lane, uint64_t changes) noexcept;
  void end(Lane& lane) noexcept;
  void changed() noexcept;
  void lose(Lane& lane, const IoResult& result) noexcept;
  bool break_rules(const char* why) noexcept;
  void thread_over() noexcept;

  const uint32_t number_;
  const bool sends_first_;
  std::vector<std::unique_ptr<Lane>> lanes_;  // fixed from the beginning
  Events events_;
  std::chrono::nanoseconds poll_;  // how long a thread looks at its connection before it sleeps
  // Of simulate(), before start():
  size_t stripe_bytes_ = wire::kStripeBytes;
  std::function<bool()> others_;

  mutable std::mutex mutex_;  // a leaf
  Condition placed_changed_;
  // Guarded by mutex_:
  Outgoing out_;
  bool out_active_ = false;
  LaneCount count_;
  std::chrono::steady_clock::time_point out_began_;
  Incoming in_;
  std::span<std::byte> place_;  // empty: nobody wants bytes now
  uint64_t place_at_ = 0;       // position of its first byte
  bool place_in_order_ = false;
  uint64_t next_ = 0;     // in order: where the next byte goes
  unsigned writers_ = 0;  // threads that are writing into place_
  IoResult failure_{IoStatus::ok};
  bool peer_closed_ = false;
  std::string fault_;
  size_t ready_ = 0;
  size_t running_ = 0;

  // Grows when a lane may have something new to do; seq_cst, with Lane::sleeps.
  std::atomic<uint64_t> changes_{0};
  // The missing bytes of place_. Falls under mutex_; a thread reads it before it sleeps, and again under the mutex.
  std::atomic<size_t> missing_{0};
  std::atomic<uint64_t> bytes_received_{0};  // relaxed: only compared
  std::atomic<size_t> in_use_{0};            // relaxed: for people
  std::atomic<bool> can_send_{false};        // set once under mutex_, when all threads have started
  std::atomic<bool> closed_{false};          // set once; the threads look at it at every turn
  bool resets_ = false;                      // written before closed_ is set
};

}  // namespace gpuwire::link
