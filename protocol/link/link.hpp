// Two streams of bytes, one each way, that outlive the connection that happens to carry them. README.md draws threads,
// locks and atomics.
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

// Only acknowledgements use this part of the ring: the peer may free room only when it has received one.
inline constexpr size_t kAcknowledgeReserveBytes = 4096;

struct LinkLimits {
  size_t ring_bytes = wire::kSendWindowBytes;
  size_t bulk_bytes_max = wire::kBulkWindowBytes;  // outside the ring and not acknowledged
  // Longer bulk is outside the ring, at both ends, and comes in parts where there may be lanes. Shorter bulk may be
  // outside the ring, too, and travels as if it were not.
  size_t bulk_in_ring_max = wire::kPostedBulkBytesMax;
  size_t lane_part_bytes_min =
      1u << 20;  // shorter bulk goes behind its message even so: waking the lanes would take longer
};

// How a connection was lost, as far as this side can see.
enum class Loss : uint8_t {
  closed,    // the peer has closed it, or its system for it
  reset,     // the peer's system, or somebody in its name, says that there is no such connection
  broken,    // it leads nowhere any more: a time limit of the kernel's, no route, bytes that cannot be
  given_up,  // by this side
};

// How a connection is given up: so that the peer sees an end, or so that it cannot take it for one, or so that it sees
// nothing before another one has come.
enum class GivingUp : uint8_t { closes, resets, leaves };

// Any thread may append, wait and ask. One thread at a time sends, whichever comes first (pump()); one at a time
// receives, which is its owner's to see to. Nothing throws.
class Link final : public transport::ByteSource {
 public:
  enum class State : uint8_t { attached, detached, ended };

  explicit Link(std::unique_ptr<transport::Transport> first, const LinkLimits& limits = {});
  ~Link();
  Link(const Link&) = delete;
  Link& operator=(const Link&) = delete;
  bool valid() const { return window_.valid(); }

  // Called after a connection was lost or given up, and after another one was attached, on the thread that found or did
  // it. One call at a time, and only with the current state: of two changes on two threads the last is reported last.
  // None of the locks that the link's other functions take is held. Set before the first byte.
  void observe(std::function<void(State)> observer) { observer_ = std::move(observer); }
  // From now on a connection that breaks leaves the link detached. Until then it is the end of the stream, as with a
  // bare connection.
  void outlive_connections() { outlives_.store(true, std::memory_order_relaxed); }
  State state() const { return state_.load(std::memory_order_acquire); }

  // --- lanes: README.md --------------------------------------------------------------------------------------------
  // From the next frame on, bulk outside the ring comes in parts, both ways. Before there is any. `comes_back`: this
  // side gets another connection when a lane is lost with bytes that the peer may not have; the other side waits for
  // it. False: no memory.
  bool begin_parts(bool comes_back);
  // Further connections for bulk, beside `beside` and as long as that is the link's; starts their threads. They take
  // the place of others. One thread at a time, none of a lane's. False: it is not, or there are no threads for them.
  bool add_lanes(const transport::Transport& beside, std::shared_ptr<LaneSet> lanes);
  // How many there are now, and how many of the last ones the last part that was sent went over.
  size_t lanes() const;
  size_t lanes_in_use() const { return lanes_in_use_.load(std::memory_order_relaxed); }
  // Bulk outside the ring that has gone either way, over all connections; of it, over lanes.
  uint64_t bulk_bytes() const {
    return bulk_sent_.load(std::memory_order_relaxed) + bulk_received_.load(std::memory_order_relaxed) + lane_bytes();
  }
  uint64_t lane_bytes() const {
    return lane_bytes_sent_.load(std::memory_order_relaxed) + lane_bytes_received_.load(std::memory_order_relaxed);
  }
  // Changes with every byte that comes, by whichever connection.
  uint64_t bytes_come() const;
  // The connection was lost because the peer broke its rules: another one is no help.
  bool damaged() const;
  // Called now and then by a thread that waits for lanes in receive_bulk(). Set before the first byte.
  void while_waiting(std::function<void()> poll) { poll_ = std::move(poll); }

  // --- appending ---------------------------------------------------------------------------------------------------
  // The send lock, under which a frame is built in place: short, and nothing that waits.
  void lock() const { mutex_.lock(); }
  void unlock() const { mutex_.unlock(); }
  bool try_lock() const { return mutex_.try_lock(); }
  bool is_locked_by_this_thread() const noexcept { return is_held_by_this_thread(mutex_); }
  // With the lock: contiguous zero or more bytes of the ring, 8-byte aligned. Null: there is no room for them, or for
  // `external_bytes` of bulk behind them, while `reserve_bytes` of the ring stay free.
  std::byte* reserve(size_t bytes, size_t external_bytes, size_t reserve_bytes);
  // With the lock: appends the first `bytes` of the last reservation, and `external` behind them. False: no memory,
  // nothing was appended.
  bool publish(size_t bytes, const ExternalBulk* external = nullptr);
  // With the lock.
  uint64_t appended() const { return window_.appended(); }
  size_t unsent_in_ring() const { return window_.unsent_in_ring(); }
  bool everything_sent() const { return window_.appended() == window_.sent(); }

  // Changes when there may be more room than before. Read it with the lock when reserve() has failed.
  uint64_t room_changes() const { return room_changes_.load(std::memory_order_relaxed); }
  // Sleeps until that has changed, or `timeout`. False: there will be none, the link has ended or was interrupted.
  bool await_room(uint64_t seen, Nanoseconds timeout);

  // --- sending -----------------------------------------------------------------------------------------------------
  // Sends as much as possible without waiting, unless another thread is sending: that thread then also sends the bytes
  // that were appended meanwhile. False: unsent bytes remain when it returns.
  bool pump();
  // Sees to it that everything before `position` is sent: waits for the connection to take it, unless another thread is
  // at that or there is no connection. One that has taken nothing for `stall` is given up.
  void push(uint64_t position, Nanoseconds stall);
  // Has everything before `position`, and all that a lost connection has made us send again, left this process (or been
  // dropped)?
  bool sent(uint64_t position) const {
    return sent_.load(std::memory_order_acquire) >= std::max(position, again_until_.load(std::memory_order_relaxed));
  }
  // The connection took no more when it was last tried, so something is unsent that nobody else may come to send.
  bool blocked() const { return blocked_.load(std::memory_order_relaxed); }
  // Has the peer taken over everything before `position`?
  bool acknowledged(uint64_t position) const { return acknowledged_.load(std::memory_order_acquire) >= position; }
  // When this returns, the link no longer reads the caller's memory that was appended as bulk up to `position`; the
  // peer gets zeros for bytes that it has not received.
  void forget_external(uint64_t position);
  // Is any bulk outside the ring not acknowledged?
  bool holds_external() const;
  // The bytes that are stored for sending again, never more than the limits.
  struct Kept {
    size_t ring_bytes, bulk_bytes;  // bulk: outside the ring
  };
  Kept kept() const;

  // --- receiving: one thread at a time -----------------------------------------------------------------------------
  // As Transport's; would_block while detached. Received acknowledgements free room at once.
  IoResult try_receive(std::span<std::byte> out) noexcept override { return receive(out, Taking::now); }
  // May wait until `out` is full, where the connection can do that by itself.
  IoResult receive_bulk(std::span<std::byte> out) noexcept { return receive(out, Taking::all); }
  // The same only for bytes that come over lanes. Nobody else reads or writes `out` meanwhile.
  IoResult receive_in_place(std::span<std::byte> out) noexcept override { return receive(out, Taking::all_of_lanes); }
  // Is there anything to receive, the end included? Costs one system call at most.
  bool input() noexcept;
  // Position behind the last byte that came.
  uint64_t received() const { return received_.load(std::memory_order_relaxed); }
  // The received bytes contain the goodbye of the peer, a client.
  bool sent_goodbye() const { return sent_goodbye_.load(std::memory_order_relaxed); }
  // The peer has acknowledged bytes that it cannot have received.
  bool bad_acknowledgement() const { return bad_acknowledgement_.load(std::memory_order_relaxed); }
  // Everything before `position` has been taken over. When there is enough of it, or `now`, an acknowledgement is
  // appended, which the owner has to send: the position behind it. 0: there is none yet.
  uint64_t consumed(uint64_t position, bool now = false);

  // --- any thread --------------------------------------------------------------------------------------------------
  // As Transport's. While detached it sleeps until there is a connection, a wake() for one of the `interested`, or
  // `timeout`. The loss of a connection counts as a wake().
  unsigned wait(unsigned interest, Nanoseconds timeout) noexcept override;
  void wake() noexcept;
  // The connection's reason of its end; empty: the system's error is the whole reason.
  std::string failure() const;
  // Why the last connection was lost, in words, and how.
  std::string loss() const;
  Loss kind_of_loss() const;
  // The connection that carries the link now, or carried it last.
  std::shared_ptr<transport::Transport> transport() const;

  // --- replacing the connection ------------------------------------------------------------------------------------
  // Gives the connection up, if there is one, and returns the number of received bytes, which does not change until
  // attach().
  uint64_t detach() noexcept;
  // Gives `which` up if it is still the link's connection; does not wait. `why`: for loss(). False: it was not, or the
  // link does not outlive its connection.
  bool give_up(const transport::Transport& which, std::string why, GivingUp how);
  // While detached: goes on over `next`, whose peer has received everything before `peer_received`. False: it cannot
  // have, or the link has ended.
  bool attach(std::unique_ptr<transport::Transport> next, uint64_t peer_received);
  // A frame that says nothing but that we are here, if there is nothing else to send. The caller sends it.
  void append_heartbeat();
  // Statistics over all connections: the sent bytes, the number of calls, and the bytes that were sent again.
  uint64_t bytes_sent() const { return bytes_sent_.load(std::memory_order_relaxed); }
  uint64_t writes() const { return writes_.load(std::memory_order_relaxed); }
  uint64_t bytes_sent_again() const { return bytes_sent_again_.load(std::memory_order_relaxed); }

  // Ends all waits: receiving returns `closed` at once, and threads that wait for room give up. Appended bytes are
  // still sent.
  void interrupt() noexcept;
  // The end of both streams: nothing is sent or received any more, and nobody's memory is read.
  void end() noexcept;
  // In a child after fork(): closes the descriptors; nothing else may be called after it. Async-signal-safe.
  void abandon_after_fork() noexcept;
  // The calling thread has left a function of the link by siglongjmp(), and does not return: releases its locks, its
  // role of sending and, if it `had_received`, that of receiving. If bytes may have been moved without being counted,
  // the connection is given up for another one, which reports the positions of both sides. The caller has handled the
  // frame that it was appending. False: the state cannot be repaired, and the link should end.
  bool take_back_from_left_call(bool had_received) noexcept;
  // With the lock, in a signal handler: is a thread sending, is the calling one, which `receives`, receiving, or may it
  // hold a lock of the link or of its connection, which others may wait for with the link's own?
  bool is_inside(bool receives) noexcept {
    return (receives && receiving_.load(std::memory_order_relaxed)) || sending_ || !is_seen_free(slot_mutex_) ||
           !is_seen_free(notifying_) || transport_->is_inside();
  }
  // For the end of the process in a signal handler, with the lock, which is not given up meanwhile: these take no other
  // lock, allocate and free nothing, and wake nobody, since the interrupted thread may hold whatever that needs, the
  // memory allocator's locks among it. publish_at_end(): as publish(); false: there is no place for it.
  bool publish_at_end(size_t bytes) noexcept;
  // Sends what it can without waiting. Precondition: nobody is_inside().
  void send_at_end() noexcept;

 private:
  enum class Taking : uint8_t { now, all, all_of_lanes };
  enum class WaitFor : uint8_t { this_connection, any_connection };
  // `this_connection`: returns when it is lost, too.
  unsigned wait(unsigned interest, Nanoseconds timeout, WaitFor what) noexcept;
  IoResult receive(std::span<std::byte> out, Taking taking) noexcept;
  void count_sent(size_t bytes);
  // --- lanes (link_lanes.cpp) ---
  IoResult receive_parts(transport::Transport& transport, std::span<std::byte> out, Taking taking) noexcept;
  IoResult receive_from_lanes(transport::Transport& transport, std::span<std::byte> out, Taking taking) noexcept;
  IoResult lanes_are_gone(transport::Transport& transport) noexcept;
  std::shared_ptr<LaneSet> lane_set() const;
  // With the lock:
  void begin_part(const SendWindow::Next& next);
  iovec part_header_rest();
  bool send_lane_header(std::unique_lock<std::mutex>& lock, const SendWindow::Next& next);
  void stop_lane_sending();
  void give_up_for_lanes(std::unique_lock<std::mutex>& lock, std::string why);
  void set_lanes(std::shared_ptr<LaneSet> lanes) noexcept;
  void retire_lanes(bool resets) noexcept;
  // Without it:
  void lanes_sent(uint64_t position, bool all);
  void lanes_over(const LaneSet& set);
  transport::Transport* enter_receiving() noexcept;
  void leave_receiving() noexcept;
  IoResult connection_ended(const transport::Transport* which, const IoResult& result) noexcept;
  void detach_locked(GivingUp how = GivingUp::closes) noexcept;
  void found_acknowledgement(uint64_t position);
  void pump(std::unique_lock<std::mutex>& lock);
  // One step of sending, with the lock held, which is given up for the system call. False: nothing more can be sent
  // now.
  bool send_some(std::unique_lock<std::mutex>& lock);
  // With the lock: some bytes of `pieces` have left, `header` bytes of them the header of a part.
  void count_step(size_t bytes, size_t header, bool in_parts);
  iovec external_piece(const ExternalBulk& bulk, size_t offset, uint64_t position);
  void publish_positions(bool room);
  void drop_unsent();
  void break_sending();
  // Calls the observer, after the change and without mutex_.
  void notify(State state);
  // Wakes threads that wait for a connection or for its end; called after the change.
  void announce() noexcept;
  bool sends() const {
    return state_.load(std::memory_order_relaxed) == State::attached && !send_broken_.load(std::memory_order_relaxed);
  }

  mutable std::mutex mutex_;
  Condition changed_;  // room, an end, and a sender or receiver that is back
  // Guarded by mutex_:
  SendWindow window_;
  bool sending_ = false;        // a thread is in send_some(), perhaps without the lock
  pthread_t sender_{};          // which one, unless lanes send
  uint64_t reading_until_ = 0;  // where the bulk ends that this thread reads without the lock; 0: none
  bool pushing_ = false;        // a thread is in push()
  uint64_t push_until_ = 0;     // and has to get this far
  bool drop_when_back_ = false;
  uint64_t part_until_ = 0;  // where the part ends whose header the connection has been given, or is about to be
  wire::PartHeader part_header_;
  size_t part_header_left_ = 0;                    // bytes of it that are to be sent
  uint64_t lanes_until_ = 0;                       // behind the last part that went over lanes of this connection
  std::shared_ptr<LaneSet> lanes_;                 // of this connection; null: none. Replaced under slot_mutex_, too
  std::vector<std::shared_ptr<LaneSet>> retired_;  // closed; their threads are waited for where no lane's thread can be
  std::string damage_;                             // why damaged(); else empty
  bool interrupted_ = false;
  IoResult loss_{IoStatus::closed};
  Loss kind_of_loss_ = Loss::given_up;
  std::string why_given_up_;  // empty: loss_ says why
  IoResult send_failure_{};   // of the connection that there is; ok: none

  // Taken with mutex_ held, too, and never the other way round: wake() comes from threads that hold locks which others
  // hold while they take mutex_.
  mutable std::mutex slot_mutex_;
  Condition slot_changed_;
  // Guarded by slot_mutex_:
  std::shared_ptr<transport::Transport>
      transport_;       // never null; replaced under both locks, and only while nobody sends or receives
  bool woken_ = false;  // by wake() while there was no connection, or by the loss of one, which may have had a wake

  std::function<void(State)> observer_;  // set before the first byte
  std::mutex notifying_;                 // held while it is called; the others are taken with it
  std::function<void()> poll_;           // as well; may be empty

  // Used by the thread that has set sending_ only: bytes that are not where they could be sent from.
  std::unique_ptr<std::byte[]> bounce_;
  uint64_t bounce_begin_ = 0, bounce_end_ = 0;  // positions

  // Used by the thread that receives only.
  AcknowledgementScanner scanner_;
  IncomingParts parts_{scanner_};
  uint64_t expected_until_ = 0;  // the end of the part that the lanes have received

  // Used by the thread that consumes received bytes and calls consumed(); another one may be receiving meanwhile.
  uint64_t notified_ = 0;                   // the position that the peer was last sent
  uint64_t acknowledged_short_frames_ = 0;  // short_frame_bytes_ then

  // Written under mutex_. Partner: receive(), which announces itself in receiving_ before it reads the state, both
  // seq_cst: either it sees that the connection has gone, or the thread that changes the state sees that a thread is
  // inside and waits for it.
  std::atomic<State> state_{State::attached};
  std::atomic<bool> receiving_{false};
  // Written before the first byte is received, or by the thread that receives.
  std::atomic<bool> outlives_{false};
  // Written under mutex_, read anywhere. sent_ and acknowledged_: an acquire makes sure that our last read of a
  // caller's memory comes before whatever the caller does with it next. The others publish nothing.
  std::atomic<uint64_t> sent_{0}, acknowledged_{0}, again_until_{0}, room_changes_{0}, bytes_sent_again_{0},
      bytes_sent_{0}, writes_{0};
  std::atomic<bool> blocked_{false};
  // Written under mutex_, before announce(): lanes have the sending role; read by wait() and wake(), which look again
  // after every sleep.
  std::atomic<bool> lanes_sending_{false};
  std::atomic<uint64_t> bulk_sent_{0}, lane_bytes_sent_{0}, lanes_in_use_{0};  // statistics, under mutex_
  // The lock-free copy of lanes_ for abandon_after_fork(); set before the threads start, null before the set goes.
  std::atomic<LaneSet*> lanes_at_fork_{nullptr};
  const size_t bulk_in_ring_max_, lane_part_bytes_min_;
  bool comes_back_ = false;  // set by begin_parts()
  // Written under mutex_, before announce(): the connection accepts nothing any more; the receiving thread finds the
  // reason.
  std::atomic<bool> send_broken_{false};
  // Bulk outside the ring is sent in parts; set before there is any.
  std::atomic<bool> sends_parts_{false};
  // Written by the receiving thread; the data that it publishes are handed over with that role.
  std::atomic<uint64_t> received_{0};
  // The scanner's count, copied by receive(). Partner: consumed(), which another thread may call meanwhile. Relaxed: it
  // publishes nothing, and a late count only delays the notification of the peer.
  std::atomic<uint64_t> short_frame_bytes_{0};
  std::atomic<bool> bad_acknowledgement_{false}, sent_goodbye_{false};
  std::atomic<uint64_t> bulk_received_{0}, lane_bytes_received_{0};
  // The next bytes come over lanes: a thread that waits for them checks again soon.
  std::atomic<bool> lanes_are_next_{false};
  // Set by interrupt() before it wakes the receiving thread; read by receive(). The wake-up is order enough: the flag
  // is read again after every wait.
  std::atomic<bool> stop_receiving_{false};
};

}  // namespace gpuwire::link
