// LaneSet owns the additional connections (lanes) of a session and their threads. Lanes carry bulk in stripes, directly
// between the memory of both ends. README.md describes threads and locks.
#pragma once

#include <atomic>
#include <bitset>
#include <cstddef>
#include <cstdint>
#include <functional>
#include <memory>
#include <span>
#include <string>
#include <thread>
#include <vector>

#include "protocol/link/lane_count.hpp"
#include "protocol/threads/condition.hpp"
#include "protocol/threads/mutex.hpp"
#include "protocol/transport/transport.hpp"
#include "protocol/wire/lanes.hpp"

namespace gpuwire::link {

using transport::IoResult;
using transport::IoStatus;
using transport::Nanoseconds;

// All lanes of a set are created and closed together. If one lane is lost, neither side knows which bytes were lost, so
// the link returns to the position that its peer has received.
class LaneSet {
 public:
  // Callbacks. Thread: a lane's thread. Lock: none is held.
  struct Events {
    // All bytes of the current part before `position` have been sent. `all`: no lane reads the part's memory any more.
    std::function<void(uint64_t position, bool all)> sent;
    // Called once, when the set is over. No lane's thread touches a caller's memory any more.
    std::function<void()> over;
  };
  // The client chooses `number`, different from the number of each earlier set. `sends_first` is true at the client's
  // end, which sends a message on every lane that all lanes are ready.
  LaneSet(std::vector<std::unique_ptr<transport::Transport>> lanes, uint32_t number, bool sends_first);
  // Replaces the threads, before start(). The simulation calls turn() for each lane on one thread until the set is
  // over. A thread that waits for bytes calls `others`, which runs the lanes, instead of sleeping; `others` returns
  // false if no lane could do anything.
  void simulate(size_t stripe_bytes, std::function<bool()> others);
  // Does the work of a lane's thread between two sleeps, in a simulation. Returns false if there was no work.
  // Precondition: no other turn of the same lane is running.
  bool turn(size_t lane) noexcept;
  // Ends the set and waits for its threads. Thread: none of the set's own.
  ~LaneSet();
  LaneSet(const LaneSet&) = delete;
  LaneSet& operator=(const LaneSet&) = delete;

  // Called once. Returns false if the system cannot create the threads; Events::over is called if at least one thread
  // has started.
  bool start(Events events);

  uint32_t number() const { return number_; }
  size_t lanes() const { return lanes_.size(); }
  // Returns the number of lanes that carry the parts that are sent now.
  size_t lanes_in_use() const { return in_use_.load(std::memory_order_relaxed); }

  // --- sending: one part at a time; any thread ---------------------------------------------------------------------
  bool can_send() const { return can_send_.load(std::memory_order_acquire); }
  // Sends the bytes of a part. The memory stays in place until Events report that all bytes have been sent or that the
  // set is over. Returns false if the set is over, or is about to end.
  bool send(uint64_t position, std::span<const std::byte> part);

  // --- receiving: one thread at a time -----------------------------------------------------------------------------
  // Announces a part of `bytes` bytes at `position`. Precondition: all earlier bytes have been received.
  void expect(uint64_t position, uint64_t bytes);
  enum class Order : uint8_t {
    // Receives until `out` is full, the set is over, or `stop` returns true. `stop` is called at least once in
    // kStopWait.
    any,
    // Receives the next bytes in order, and returns after about a millisecond without any. For memory that may be
    // different in the next call.
    as_sent,
  };
  // Receives bytes of that part from `position` on, which is the end of the last call. would_block: no bytes have
  // arrived, or the set is over.
  IoResult receive(uint64_t position, std::span<std::byte> out, Order order,
                   const std::function<bool()>& stop) noexcept;
  // Returns the bytes received over all lanes, without headers.
  uint64_t bytes_received() const { return bytes_received_.load(std::memory_order_relaxed); }

  // --- the end: any thread -----------------------------------------------------------------------------------------
  // Closes the set and does not wait: each lane's thread ends its connection. `resets`: the connections are reset as by
  // Transport::reset(), so that the peer does not read an orderly end as the end of a program.
  void close(bool resets) noexcept;
  // Waits for the threads of a closed set and for their callbacks. Thread: one at a time, none of the set's own.
  void finish();
  bool closed() const { return closed_.load(std::memory_order_acquire); }
  // Returns how the first lane of a set ended. peer_closed has the meaning of Transport's. Precondition: Events::over
  // was called, and no caller has closed the set.
  IoResult failure() const;
  bool peer_closed() const;
  // Returns the rule of lanes that the peer has broken, or an empty string.
  std::string fault() const;
  // Closes the descriptors in a child after fork(). No other function may be called afterwards. Async-signal-safe.
  void abandon_after_fork() noexcept;

 private:
  struct Lane {
    std::unique_ptr<transport::Transport> transport;
    std::thread thread;
    // Used only by the lane's thread:
    wire::StripeHeader out_header;
    const std::byte* out_data = nullptr;
    size_t out_left = 0, out_header_left = 0;
    uint32_t out_stripe = 0;
    bool sending = false;
    wire::StripeHeader in_header;
    // Bytes of in_header that have been read.
    size_t in_have = 0;
    // Bytes of the stripe that have been received.
    size_t in_done = 0;
    // The stripe belongs to the expected part.
    bool in_taken = false;
    // The peer has reported that it is ready.
    bool ready = false;
    // No thread wants the lane's bytes yet.
    bool input_waits = false;
    // The connection of the lane has been ended.
    bool over = false;
    // Set before the lane's thread reads changes_ for the last time, and read after changes_ has grown. Both are
    // seq_cst, so one of the two threads sees the other's write.
    std::atomic<bool> sleeps{false};
  };
  struct Outgoing {
    uint64_t position = 0;
    const std::byte* data = nullptr;
    size_t bytes = 0;
    // `before`: all stripes up to this one have been sent.
    uint32_t stripes = 0, next = 0, sent = 0, before = 0;
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
  bool claim_stripe(Lane& lane) noexcept REQUIRES(mutex_);
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
  // Fixed from construction on.
  std::vector<std::unique_ptr<Lane>> lanes_;
  Events events_;
  // How long a thread polls its connection before it sleeps.
  std::chrono::nanoseconds poll_;
  // Set by simulate(), before start():
  size_t stripe_bytes_ = wire::kStripeBytes;
  std::function<bool()> others_;

  // A leaf in the lock order.
  mutable Mutex mutex_;
  Condition placed_changed_;
  Outgoing out_ GUARDED_BY(mutex_);
  bool out_active_ GUARDED_BY(mutex_) = false;
  LaneCount count_ GUARDED_BY(mutex_);
  std::chrono::steady_clock::time_point out_began_ GUARDED_BY(mutex_);
  Incoming in_ GUARDED_BY(mutex_);
  // The destination of bytes; empty: no thread wants bytes now.
  std::span<std::byte> place_ GUARDED_BY(mutex_);
  // Position of the first byte of place_.
  uint64_t place_at_ GUARDED_BY(mutex_) = 0;
  bool place_in_order_ GUARDED_BY(mutex_) = false;
  // Position of the next byte, if bytes are received in order.
  uint64_t next_ GUARDED_BY(mutex_) = 0;
  // Number of threads that are writing into place_.
  unsigned writers_ GUARDED_BY(mutex_) = 0;
  IoResult failure_ GUARDED_BY(mutex_){IoStatus::ok};
  bool peer_closed_ GUARDED_BY(mutex_) = false;
  std::string fault_ GUARDED_BY(mutex_);
  size_t ready_ GUARDED_BY(mutex_) = 0;
  size_t running_ GUARDED_BY(mutex_) = 0;

  // Incremented when a lane may have work. seq_cst; the partner is Lane::sleeps.
  std::atomic<uint64_t> changes_{0};
  // The number of missing bytes of place_. Decreased under mutex_. A thread reads it before it sleeps, and again under
  // mutex_.
  std::atomic<size_t> missing_{0};
  // Relaxed: only compared.
  std::atomic<uint64_t> bytes_received_{0};
  // Relaxed: only for statistics.
  std::atomic<size_t> in_use_{0};
  // Set once under mutex_, when all threads have started.
  std::atomic<bool> can_send_{false};
  // Set once; each lane's thread reads it in every turn.
  std::atomic<bool> closed_{false};
  // Written before closed_ is set.
  bool resets_ = false;
};

}  // namespace gpuwire::link
