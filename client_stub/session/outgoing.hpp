// The sending side of a session: the one ordered stream of frames to which all threads append, and the rules by which a
// thread pushes it into the link.
#pragma once

#include <atomic>
#include <cstddef>
#include <cstdint>

#include "client_stub/session/session.hpp"
#include "protocol/link/link.hpp"

namespace gpuwire::client {

// Appended bytes at which the appending thread sends them itself.
inline constexpr size_t kFlushBytes = 64 * 1024;
// Longer bulk that is kept, or waited for, stays where it is until it has been sent.
inline constexpr size_t kInlineBulkBytesMax = 64 * 1024;
static_assert(kInlineBulkBytesMax <= wire::kPostedBulkBytesMax);
// Kept free of ordinary frames, for those that a notice handler posts: the thread that runs it cannot wait for room,
// because room comes with the acknowledgements that the same thread receives.
inline constexpr size_t kNoticeReserveBytes = 512 * 1024;
// Additional room for the answers to host functions: the server may acknowledge nothing until it has received one.
inline constexpr size_t kAnswerReserveBytes = 1024 * 1024;

class Outgoing {
 public:
  Outgoing(link::Link& link, SessionStats& stats) : link_(link), stats_(stats) {}

  enum class Begun : uint8_t { ok, full, too_large };
  // On ok the link's lock is held until commit() or abandon(). `reserve_bytes` of the ring are left free. On full,
  // `room_seen` is Link::room_changes() at that moment: trying again makes sense when it has changed.
  Begun begin(wire::FrameKind kind, uint32_t ordinal, uint32_t context, uint32_t words_max, const Bulk& bulk,
              size_t reserve_bytes, Session::Slot& slot, uint64_t& room_seen);

  // The next step of the committing thread, without the lock.
  struct Committed {
    bool flush = false;         // much is unsent, or nobody else would send it
    bool start_thread = false;  // the first posted frame of the session
    bool wake_thread = false;
    bool failed = false;     // no memory; nothing was appended
    uint64_t bytes_end = 0;  // position in the stream behind this frame
    bool external = false;   // its bulk is read from the caller's memory
    uint64_t bulk_bytes = 0;
  };
  Committed commit(size_t words_used);
  void abandon();
  // Called for a thread that has left begin() or commit(), or the code between them, by siglongjmp(). False: the thread
  // was not appending.
  bool take_back_from_left_call();
  // With the link's lock: the sequence that the frame under construction has, or the next one.
  uint64_t next_sequence() const { return next_sequence_; }
  // Appends a goodbye and sends it with everything before it. Does so only if no thread has the lock, and no thread is
  // in the connection; the calling thread has the role of receiving if it `receives`.
  void try_goodbye(bool receives);

  uint64_t appended_bytes() const;
  bool all_sent() const;

  // Appends a control frame. False: there is no room.
  bool append_control(wire::ControlOrdinal ordinal, kj::ArrayPtr<const capnp::word> message = {});
  uint64_t last_sequence() const { return last_sequence_.load(std::memory_order_relaxed); }

  // --- the session thread's sleep ----------------------------------------------------------------------------------
  enum class Thread : uint8_t { none, awake, asleep, unavailable };
  // For the session thread: false when there is something to send. After true, the next posted frame asks for
  // wake_thread.
  bool thread_falls_asleep();
  void thread_woke();
  // It is needed without a posted frame. False: there is one, or none can be had.
  bool thread_is_wanted();
  void thread_is_unavailable();

 private:
  link::Link& link_;
  SessionStats& stats_;

  // Guarded by the link's lock:
  wire::FrameHeader frame_;  // under construction
  std::byte* frame_at_ = nullptr;
  Bulk frame_bulk_;
  bool frame_outside_ = false;  // it stays where it is
  // From begin() until the frame is published: the steps so far can be undone.
  bool appending_ = false;
  uint64_t next_sequence_ = 1;
  Thread thread_ = Thread::none;

  // Written under the lock; readers want a recent value, nothing is published through it.
  std::atomic<uint64_t> last_sequence_{0};
};

}  // namespace gpuwire::client
