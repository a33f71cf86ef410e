// A link is two streams of bytes, one in each direction, that outlive the connection that carries them. README.md
// describes threads, locks and atomics.
#pragma once

#include <algorithm>
#include <pthread.h>

#include <atomic>
#include <cstddef>
#include <cstdint>
#include <functional>
#include <memory>
#include <mutex>
#include <span>
#include <string>
#include <vector>

#include "protocol/link/acknowledgements.hpp"
#include "protocol/link/incoming_parts.hpp"
#include "protocol/link/lane_set.hpp"
#include "protocol/link/send_window.hpp"
#include "protocol/threads/condition.hpp"
#include "protocol/threads/held_mutex.hpp"
#include "protocol/transport/transport.hpp"

namespace gpuwire::link {

using transport::IoResult;
using transport::IoStatus;
using transport::Nanoseconds;

// This part of the ring is reserved for acknowledgements, because the peer frees room only when it receives one.
inline constexpr size_t kAcknowledgeReserveBytes = 4096;

struct LinkLimits {
  size_t ring_bytes = wire::kSendWindowBytes;
  // Maximum of unacknowledged bytes outside the ring.
  size_t bulk_bytes_max = wire::kBulkWindowBytes;
  // Bulk longer than this is outside the ring at both ends, and is sent in parts if the session may have lanes. Shorter
  // bulk may be outside the ring too, but travels as if it were in the ring.
  size_t bulk_in_ring_max = wire::kPostedBulkBytesMax;
  // A shorter part follows its header over the connection, because waking the lanes would take longer.
  size_t lane_part_bytes_min = 1u << 20;
};

// How a connection was lost, as far as this side can see.
enum class Loss : uint8_t {
  closed,  // the peer, or the peer's system, has closed it
  reset,   // the peer's system, or something on the path, has reset it
  // The connection fails: a time limit of the kernel, no route, or invalid bytes.
  broken,
  given_up,  // this side has given it up
};

// How this side gives up a connection. closes: the peer sees an orderly end. resets: the peer sees a reset, which it
// cannot read as an orderly end. leaves: the peer sees nothing until another connection has been established.
enum class GivingUp : uint8_t { closes, resets, leaves };

// Threads: any thread may append, wait and query. One thread at a time sends (pump()). One thread at a time receives,
// which the owner ensures. No function throws.
class Link final : public transport::ByteSource {
 public:
  enum class State : uint8_t { attached, detached, ended };

  explicit Link(std::unique_ptr<transport::Transport> first, const LinkLimits& limits = {});
  ~Link();
  Link(const Link&) = delete;
  Link& operator=(const Link&) = delete;
  bool valid() const { return window_.valid(); }

  // Sets the observer, before the first byte. The observer is called after a connection was lost, given up or attached,
  // on the thread that found or did it. Calls are serial and pass only the current state: after two changes on two
  // threads, the last call passes the last state. None of the locks of the link's other functions is held.
  void observe(std::function<void(State)> observer) { observer_ = std::move(observer); }
  // From now on, a broken connection leaves the link detached. Before this call, the end of the connection is the end
  // of the stream.
  void outlive_connections() { outlives_.store(true, std::memory_order_relaxed); }
  State state() const { return state_.load(std::memory_order_acquire); }

  // --- lanes: README.md --------------------------------------------------------------------------------------------
  // From the next frame on, bulk outside the ring travels in parts, in both directions. Precondition: no bulk outside
  // the ring was appended yet. `comes_back`: this side reconnects when a lane is lost with bytes that the peer may not
  // have; the other side waits for the new connection. Returns false if memory is short.
  bool begin_parts(bool comes_back);
  // Adds further connections for bulk beside `beside`, starts their threads and replaces earlier lanes. Thread: one at
  // a time, none of a lane's. Returns false if `beside` is no longer the link's connection, or if the threads cannot be
  // started.
  bool add_lanes(const transport::Transport& beside, std::shared_ptr<LaneSet> lanes);
  // lanes() returns the number of lanes now; lanes_in_use() the number of lanes that carried the last sent part.
  size_t lanes() const;
  size_t lanes_in_use() const { return lanes_in_use_.load(std::memory_order_relaxed); }
  // Bytes of bulk outside the ring in both directions, over all connections; lane_bytes() counts those that lanes
  // carried.
  uint64_t bulk_bytes() const {
    return bulk_sent_.load(std::memory_order_relaxed) + bulk_received_.load(std::memory_order_relaxed) + lane_bytes();
  }
  uint64_t lane_bytes() const {
    return lane_bytes_sent_.load(std::memory_order_relaxed) + lane_bytes_received_.load(std::memory_order_relaxed);
  }
  // Returns a number that changes with every received byte, over any connection.
  uint64_t bytes_come() const;
  // Returns true if the peer broke the rules of the connection. A new connection would not help.
  bool damaged() const;
  // Sets a function that a thread calls repeatedly while it waits for lanes in receive_bulk(). Set before the first
  // byte.
  void while_waiting(std::function<void()> poll) { poll_ = std::move(poll); }

  // --- appending ---------------------------------------------------------------------------------------------------
  // The lock under which a frame is built in place. Holders are brief and never wait.
  void lock() const { mutex_.lock(); }
  void unlock() const { mutex_.unlock(); }
  bool try_lock() const { return mutex_.try_lock(); }
  bool is_locked_by_this_thread() const noexcept { return is_held_by_this_thread(mutex_); }
  // Lock: held. Returns `bytes` contiguous bytes of the ring (zero is allowed), 8-byte aligned. Null: there is no room
  // for them, or for `external_bytes` of bulk behind them, with `reserve_bytes` of the ring left free.
  std::byte* reserve(size_t bytes, size_t external_bytes, size_t reserve_bytes);
  // Lock: held. Appends the first `bytes` of the last reservation, and `external` behind them. Returns false, and
  // appends nothing, if memory is short.
  bool publish(size_t bytes, const ExternalBulk* external = nullptr);
  // Lock: held, for these three.
  uint64_t appended() const { return window_.appended(); }
  size_t unsent_in_ring() const { return window_.unsent_in_ring(); }
  bool everything_sent() const { return window_.appended() == window_.sent(); }

  // Returns a number that changes when room may have been freed. A caller whose reserve() has failed reads it under the
  // lock.
  uint64_t room_changes() const { return room_changes_.load(std::memory_order_relaxed); }
  // Sleeps until room_changes() differs from `seen`, or until `timeout`. Returns false if no room will be freed,
  // because the link has ended or was interrupted.
  bool await_room(uint64_t seen, Nanoseconds timeout);

  // --- sending -----------------------------------------------------------------------------------------------------
  // Sends as much as possible without waiting. If another thread is sending, that thread also sends the bytes that were
  // appended meanwhile. Returns false if unsent bytes remain.
  bool pump();
  // Sends everything before `position`, and waits while the connection accepts no bytes. Returns at once if another
  // thread is pushing or if there is no connection. Gives up a connection that accepts nothing for `stall`.
  void push(uint64_t position, Nanoseconds stall);
  // Returns true if everything before `position`, and everything that was sent again after a lost connection, has left
  // this process or was dropped.
  bool sent(uint64_t position) const {
    return sent_.load(std::memory_order_acquire) >= std::max(position, again_until_.load(std::memory_order_relaxed));
  }
  // Returns true if the connection accepted no more bytes in the last attempt. The unsent bytes then need another
  // attempt.
  bool blocked() const { return blocked_.load(std::memory_order_relaxed); }
  // Returns true if the peer has consumed everything before `position`.
  bool acknowledged(uint64_t position) const { return acknowledged_.load(std::memory_order_acquire) >= position; }
  // After the return, the link no longer reads the caller's memory that was appended as bulk up to `position`. Zeros
  // are sent in place of bytes that the peer has not received.
  void forget_external(uint64_t position);
  // Returns true if bulk outside the ring is not acknowledged.
  bool holds_external() const;
  // The bytes that are stored in order to be sent again; never more than the limits.
  struct Kept {
    // bulk_bytes: outside the ring.
    size_t ring_bytes, bulk_bytes;
  };
  Kept kept() const;

  // --- receiving: one thread at a time -----------------------------------------------------------------------------
  // Receives like Transport::try_receive(); would_block while detached. Received acknowledgements free room at once.
  IoResult try_receive(std::span<std::byte> out) noexcept override { return receive(out, Taking::now); }
  // Receives, and may wait until `out` is full if the connection supports that.
  IoResult receive_bulk(std::span<std::byte> out) noexcept { return receive(out, Taking::all); }
  // Receives like receive_bulk(), but only bytes that arrive over lanes. No other thread may access `out` meanwhile.
  IoResult receive_in_place(std::span<std::byte> out) noexcept override { return receive(out, Taking::all_of_lanes); }
  // Returns true if a receive call would return bytes or the end of the stream. Makes at most one system call.
  bool input() noexcept;
  // Returns the position behind the last received byte.
  uint64_t received() const { return received_.load(std::memory_order_relaxed); }
  // Returns true if the received bytes contain the goodbye of the peer, a client.
  bool sent_goodbye() const { return sent_goodbye_.load(std::memory_order_relaxed); }
  // Returns true if the peer has acknowledged bytes that it cannot have received.
  bool bad_acknowledgement() const { return bad_acknowledgement_.load(std::memory_order_relaxed); }
  // The caller has consumed everything before `position`. Appends an acknowledgement if enough bytes are due, or if
  // `now`; the owner sends it. Returns the position behind the acknowledgement, or 0 if none was appended.
  uint64_t consumed(uint64_t position, bool now = false);

  // --- any thread --------------------------------------------------------------------------------------------------
  // Waits like Transport::wait(). While detached, wait() sleeps until a connection is attached, until a wake() or until
  // `timeout`. The loss of a connection counts as a wake().
  unsigned wait(unsigned interest, Nanoseconds timeout) noexcept override;
  void wake() noexcept;
  // Returns the connection's own reason of its end. Empty: the system's error is the whole reason.
  std::string failure() const;
  // loss() returns the reason of the last loss as text; kind_of_loss() returns its kind.
  std::string loss() const;
  Loss kind_of_loss() const;
  // Returns the connection that carries the link now, or that carried it last.
  std::shared_ptr<transport::Transport> transport() const;

  // --- replacing the connection ------------------------------------------------------------------------------------
  // Gives up the connection, if there is one. Returns the number of received bytes, which does not change until
  // attach().
  uint64_t detach() noexcept;
  // Gives up `which` if it is still the link's connection; does not wait. loss() returns `why` afterwards. Returns
  // false if `which` is not the link's connection, or if the link does not outlive its connection.
  bool give_up(const transport::Transport& which, std::string why, GivingUp how);
  // Continues over `next`, whose peer has received everything before `peer_received`. Precondition: the link is
  // detached. Returns false if the peer cannot have received that much, or if the link has ended.
  bool attach(std::unique_ptr<transport::Transport> next, uint64_t peer_received);
  // Appends a heartbeat frame if there is nothing else to send. The caller sends it.
  void append_heartbeat();
  // Statistics over all connections: sent bytes, number of calls that sent, and bytes that were sent again.
  uint64_t bytes_sent() const { return bytes_sent_.load(std::memory_order_relaxed); }
  uint64_t writes() const { return writes_.load(std::memory_order_relaxed); }
  uint64_t bytes_sent_again() const { return bytes_sent_again_.load(std::memory_order_relaxed); }

  // Ends all waits: receiving returns `closed` at once, and threads that wait for room give up. Appended bytes are
  // still sent.
  void interrupt() noexcept;
  // Ends both streams: the link sends and receives nothing any more, and reads no caller's memory.
  void end() noexcept;
  // Closes the descriptors in a child after fork(). No other function may be called afterwards. Async-signal-safe.
  void abandon_after_fork() noexcept;
  // Repairs the state after the calling thread has left a function of the link by siglongjmp(): releases the thread's
  // locks, its sending role and, if `had_received`, its receiving role. If bytes may have been moved without being
  // counted, the connection is given up, and the next connection reports the positions of both sides. Precondition: the
  // caller has handled the frame that it was appending. Returns false if the state cannot be repaired; the link should
  // then end.
  bool take_back_from_left_call(bool had_received) noexcept;
  // For a signal handler. Lock: held. Returns true if a thread is sending, if the calling thread is receiving
  // (`receives`), or if the calling thread may hold a lock of the link or of its connection. Other threads may wait for
  // these locks while they hold the link's lock.
  bool is_inside(bool receives) noexcept {
    return (receives && receiving_.load(std::memory_order_relaxed)) || sending_ || !is_seen_free(slot_mutex_) ||
           !is_seen_free(notifying_) || transport_->is_inside();
  }
  // For the end of the process in a signal handler. Lock: held, and not released meanwhile. Both functions take no
  // other lock, allocate and free no memory, and wake no thread, because the interrupted thread may hold the locks that
  // this needs, such as the memory allocator's. publish_at_end() appends like publish(), and returns false if there is
  // no room.
  bool publish_at_end(size_t bytes) noexcept;
  // Sends as much as possible without waiting. Precondition: is_inside() is false.
  void send_at_end() noexcept;

 private:
  enum class Taking : uint8_t { now, all, all_of_lanes };
  enum class WaitFor : uint8_t { this_connection, any_connection };
  // `this_connection`: the wait also ends when this connection is lost.
  unsigned wait(unsigned interest, Nanoseconds timeout, WaitFor what) noexcept;
  IoResult receive(std::span<std::byte> out, Taking taking) noexcept;
  void count_sent(size_t bytes);
  // --- lanes (link_lanes.cpp) ---
  IoResult receive_parts(transport::Transport& transport, std::span<std::byte> out, Taking taking) noexcept;
  IoResult receive_from_lanes(transport::Transport& transport, std::span<std::byte> out, Taking taking) noexcept;
  IoResult lanes_are_gone(transport::Transport& transport) noexcept;
  std::shared_ptr<LaneSet> lane_set() const;
  // --- with mutex_ held
  // `position`: of the next byte of the bulk.
  void begin_part(const SendWindow::Next& next, uint64_t position);
  iovec part_header_rest();
  bool send_lane_header(std::unique_lock<std::mutex>& lock, const SendWindow::Next& next);
  void stop_lane_sending();
  void give_up_for_lanes(std::unique_lock<std::mutex>& lock, std::string why);
  void set_lanes(std::shared_ptr<LaneSet> lanes) noexcept;
  void retire_lanes(bool resets) noexcept;
  // Lock: mutex_ is not held, for the next two functions.
  void lanes_sent(uint64_t position, bool all);
  void lanes_over(const LaneSet& set);
  transport::Transport* enter_receiving() noexcept;
  void leave_receiving() noexcept;
  IoResult connection_ended(const transport::Transport* which, const IoResult& result) noexcept;
  void detach_locked(GivingUp how = GivingUp::closes) noexcept;
  void found_acknowledgement(uint64_t position);
  void pump(std::unique_lock<std::mutex>& lock);
  // Does one step of sending. Lock: held, and released during the system call. Returns false if nothing more can be
  // sent now.
  bool send_some(std::unique_lock<std::mutex>& lock);
  // Counts `bytes` sent bytes of these: bytes of the ring, then those of a part's header, then bulk. Lock: held.
  void count_step(size_t bytes, size_t ring_bytes, size_t header, bool in_parts);
  iovec external_piece(const ExternalBulk& bulk, size_t offset, uint64_t position);
  void publish_positions(bool room);
  void drop_unsent();
  void break_sending();
  // Calls the observer after a change. Lock: mutex_ is not held.
  void notify(State state);
  // Wakes the threads that wait for a connection or for its end. Called after the change.
  void announce() noexcept;
  bool sends() const {
    return state_.load(std::memory_order_relaxed) == State::attached && !send_broken_.load(std::memory_order_relaxed);
  }

  mutable std::mutex mutex_;
  // Notified of free room, of an end, and when a sender or receiver has returned.
  Condition changed_;
  // Guarded by mutex_:
  SendWindow window_;
  // A thread is in send_some(), possibly without the lock.
  bool sending_ = false;
  // The thread that sends, unless lanes send.
  pthread_t sender_{};
  // Position of the end of the bulk that the sending thread reads without the lock. 0: the thread reads no bulk.
  uint64_t reading_until_ = 0;
  // A thread is in push().
  bool pushing_ = false;
  // The position up to which push() sends.
  uint64_t push_until_ = 0;
  bool drop_when_back_ = false;
  // Position of the end of the part whose header has been, or is about to be, given to the connection.
  uint64_t part_until_ = 0;
  wire::PartHeader part_header_;
  // Unsent bytes of part_header_.
  size_t part_header_left_ = 0;
  // Position behind the last part that went over lanes of this connection.
  uint64_t lanes_until_ = 0;
  // The lanes of this connection, or null. Replaced under mutex_ and slot_mutex_.
  std::shared_ptr<LaneSet> lanes_;
  // Closed sets. Threads that cannot be a lane's own thread wait for them to finish.
  std::vector<std::shared_ptr<LaneSet>> retired_;
  // The reason of damaged(), or empty.
  std::string damage_;
  bool interrupted_ = false;
  IoResult loss_{IoStatus::closed};
  Loss kind_of_loss_ = Loss::given_up;
  // Empty: loss_ has the reason.
  std::string why_given_up_;
  // The failure of the present connection; ok: sending has not failed.
  IoResult send_failure_{};

  // Lock order: after mutex_. wake() takes slot_mutex_ alone, because its callers may hold locks that other threads
  // hold while they take mutex_.
  mutable std::mutex slot_mutex_;
  Condition slot_changed_;
  // Guarded by slot_mutex_:
  // Never null; replaced under both locks, and only while no thread sends or receives.
  std::shared_ptr<transport::Transport> transport_;
  // Set by wake() while there is no connection, and by the loss of a connection, which may have received a wake().
  bool woken_ = false;

  // Set before the first byte.
  std::function<void(State)> observer_;
  // Held during a call of observer_; the other locks are taken after it.
  std::mutex notifying_;
  // Set before the first byte; may be empty.
  std::function<void()> poll_;

  // Used only by the thread that has set sending_: a copy of bytes that cannot be sent from where they are.
  std::unique_ptr<std::byte[]> bounce_;
  // Positions.
  uint64_t bounce_begin_ = 0, bounce_end_ = 0;

  // Used only by the receiving thread.
  AcknowledgementScanner scanner_;
  IncomingParts parts_{scanner_};
  // The end of the part that the lanes have received.
  uint64_t expected_until_ = 0;

  // Used by the thread that consumes received bytes and calls consumed(). Another thread may be receiving meanwhile.
  // The position in the last acknowledgement that was sent to the peer.
  uint64_t notified_ = 0;
  // short_frame_bytes_ at the last acknowledgement.
  uint64_t acknowledged_short_frames_ = 0;

  // Written under mutex_. Partner: receive(), which sets receiving_ before it reads state_. Both are seq_cst: either
  // receive() sees that the connection has gone, or the thread that changes the state sees a receiving thread and waits
  // for it.
  std::atomic<State> state_{State::attached};
  std::atomic<bool> receiving_{false};
  // Written before the first byte is received, or by the receiving thread.
  std::atomic<bool> outlives_{false};
  // Written under mutex_, read by any thread. sent_ and acknowledged_ are read with acquire, so that the link's last
  // read of a caller's memory comes before the caller's next use of it. The others publish nothing.
  std::atomic<uint64_t> sent_{0}, acknowledged_{0}, again_until_{0}, room_changes_{0}, bytes_sent_again_{0},
      bytes_sent_{0}, writes_{0};
  std::atomic<bool> blocked_{false};
  // True while lanes have the sending role. Written under mutex_, before announce(). wait() and wake() read it again
  // after every sleep.
  std::atomic<bool> lanes_sending_{false};
  // Statistics; written under mutex_.
  std::atomic<uint64_t> bulk_sent_{0}, lane_bytes_sent_{0}, lanes_in_use_{0};
  // The lock-free copy of lanes_ for abandon_after_fork(). Set before the threads start, null before the set is
  // destroyed.
  std::atomic<LaneSet*> lanes_at_fork_{nullptr};
  const size_t bulk_in_ring_max_, lane_part_bytes_min_;
  // Set by begin_parts().
  bool comes_back_ = false;
  // True if the connection accepts nothing any more. Written under mutex_, before announce(). The receiving thread
  // finds the reason.
  std::atomic<bool> send_broken_{false};
  // Bulk outside the ring is sent in parts. Set before the first such bulk.
  std::atomic<bool> sends_parts_{false};
  // Written by the receiving thread. The receiving role is handed over with the data that this position describes.
  std::atomic<uint64_t> received_{0};
  // The scanner's count, copied by receive(). Partner: consumed(), which another thread may call meanwhile. Relaxed:
  // the count publishes nothing, and a late count only delays the acknowledgement.
  std::atomic<uint64_t> short_frame_bytes_{0};
  std::atomic<bool> bad_acknowledgement_{false}, sent_goodbye_{false};
  std::atomic<uint64_t> bulk_received_{0}, lane_bytes_received_{0};
  // The next bytes arrive over lanes, so a thread that waits for them checks again soon.
  std::atomic<bool> lanes_are_next_{false};
  // Set by interrupt() before it wakes the receiving thread; read by receive(). Relaxed: receive() reads the flag again
  // after every wait.
  std::atomic<bool> stop_receiving_{false};
};

}  // namespace gpuwire::link
