// The sending side of a session: the one ordered stream that all threads append to, and who pushes it into the connection when.
#pragma once

#include <atomic>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <mutex>

#include "client_stub/session/send_window.hpp"
#include "client_stub/session/session.hpp"
#include "protocol/transport/transport.hpp"

namespace gpuwire::client {

// Appended bytes at which the appending thread sends them itself.
inline constexpr size_t kFlushBytes = 64 * 1024;

class Outgoing {
 public:
  Outgoing(transport::Transport& transport, SessionStats& stats) : transport_(transport), stats_(stats) {}
  bool valid() const { return window_.valid(); }

  enum class Begun : uint8_t { ok, full, bulks_full, too_large };
  // On ok the lock is held until commit() or abandon(). `reserve_bytes` of the ring are left free. On full, `room_seen` is
  // room_changes() at that moment: trying again makes sense when it has changed.
  Begun begin(wire::FrameKind kind, uint32_t ordinal, uint32_t context, uint32_t words_max, const Bulk& bulk, size_t reserve_bytes, Session::Slot& slot,
              uint64_t& room_seen);
  uint64_t room_changes() const { return room_changes_.load(std::memory_order_relaxed); }

  // What the committing thread has to do next, without the lock.
  struct Committed {
    bool flush = false;         // much is unsent, or nobody else would send it
    bool start_thread = false;  // the first posted frame of the session
    bool wake_thread = false;
    bool failed = false;        // no memory; nothing was appended
    uint64_t bytes_end = 0;     // appended_bytes() behind this frame
  };
  Committed commit(size_t words_used);
  void abandon();

  // Sends what it can without waiting, unless another thread is at it: that one then also sends what was appended meanwhile. False: the
  // connection takes no more just now.
  bool pump();
  // Has everything up to `bytes_end` left this process's memory (or been dropped)? Nothing reads the callers' memory of those frames then.
  bool sent(uint64_t bytes_end) const { return sent_bytes_.load(std::memory_order_acquire) >= bytes_end; }
  uint64_t appended_bytes() const;
  bool all_sent() const;

  // Appends a frame that tells the server what has been taken over.
  void append_acknowledgement(uint64_t count);
  // Appends a control frame without a message.
  void append_control(wire::ControlOrdinal ordinal);
  // The server has acknowledged. False: it cannot have.
  bool acknowledged(uint64_t sequence);
  uint64_t last_sequence() const { return last_sequence_.load(std::memory_order_relaxed); }

  // The connection is gone: nothing is sent any more, and what waits to be sent counts as sent.
  void drop();

  // --- the session thread's sleep -----------------------------------------------------------------------------------------------------------
  enum class Thread : uint8_t { none, awake, asleep, unavailable };
  // For the session thread: false when there is something to send. After true, the next posted frame asks for wake_thread.
  bool thread_falls_asleep();
  void thread_woke();
  void thread_is_unavailable();

 private:
  void append_bare(const wire::FrameHeader& header);
  // One step of sending, called with the lock held and giving it up for the system call. False: nothing more can be sent now.
  bool send_some(std::unique_lock<std::mutex>& lock);
  void forget_unsent();
  size_t fill_bounce(const ExternalBulk& external);

  transport::Transport& transport_;
  SessionStats& stats_;

  mutable std::mutex mutex_;
  // Guarded by mutex_:
  SendWindow window_;
  wire::FrameHeader frame_;         // under construction
  std::byte* frame_at_ = nullptr;
  Bulk frame_bulk_;
  uint64_t next_sequence_ = 1;
  bool sending_ = false;            // a thread is in send_some(), perhaps without the lock
  bool blocked_ = false;            // the last try found the connection full
  bool dropped_ = false;
  Thread thread_ = Thread::none;

  // Used by the thread that has set sending_ only: bytes gathered from the caller's memory.
  std::unique_ptr<std::byte[]> bounce_;
  size_t bounce_begin_ = 0, bounce_end_ = 0;

  // Written under mutex_, read anywhere. Partner: sent(), whose acquire makes sure that the last read of a caller's memory by send_some()
  // comes before whatever that caller does with it next.
  std::atomic<uint64_t> sent_bytes_{0};
  // Written under mutex_; readers want a recent value, nothing is published through it.
  std::atomic<uint64_t> last_sequence_{0};
  // Written under mutex_. begin() reads it under the lock too, so a change after a failed begin() is seen as one by whoever compares.
  std::atomic<uint64_t> room_changes_{0};
};

}  // namespace gpuwire::client
