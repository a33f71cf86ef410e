// The sending side of a session: the ordered stream of frames to which all threads append, and the rules by which a
// thread sends it into the link.
#pragma once

#include <atomic>
#include <cstddef>
#include <cstdint>

#include "client_stub/session/session.hpp"
#include "protocol/link/link.hpp"

namespace gpuwire::client {

// Appended bytes at which the appending thread sends them itself.
inline constexpr size_t kFlushBytes = 64 * 1024;
// Longer bulk that is cached, or waited for, is not copied into the window.
inline constexpr size_t kInlineBulkBytesMax = 64 * 1024;
static_assert(kInlineBulkBytesMax <= wire::kPostedBulkBytesMax);
// Reserved for frames that a notice handler posts: its thread cannot wait for room, because it receives the
// acknowledgements that make room.
inline constexpr size_t kNoticeReserveBytes = 512 * 1024;
// Additional room for the answers to host functions: the server may acknowledge nothing until it has received one.
inline constexpr size_t kAnswerReserveBytes = 1024 * 1024;

class Outgoing {
 public:
  Outgoing(link::Link& link, SessionStats& stats) : link_(link), stats_(stats) {}

  enum class Begun : uint8_t { ok, full, too_large };
  // On ok the link's lock is held until commit() or abandon(). `reserve_bytes` of the ring stay free. On full,
  // `room_seen` is Link::room_changes() at that moment: another attempt can succeed only after it has changed.
  Begun begin(wire::FrameKind kind, uint32_t ordinal, uint32_t context, uint32_t words_max, const Bulk& bulk,
              size_t reserve_bytes, Session::Slot& slot, uint64_t& room_seen);

  // The next actions of the committing thread, without the lock.
  struct Committed {
    // Much is unsent, or no other thread would send it.
    bool flush = false;
    // The first posted frame of the session.
    bool start_thread = false;
    bool wake_thread = false;
    // No memory; nothing was appended.
    bool failed = false;
    // Position in the stream behind this frame.
    uint64_t bytes_end = 0;
    // Its bulk is read from the caller's memory.
    bool external = false;
    uint64_t bulk_bytes = 0;
  };
  Committed commit(size_t words_used);
  void abandon();
  // Undoes the appending of a thread that has left begin(), commit() or the code between them by siglongjmp(). Returns
  // false if the thread was not appending.
  bool take_back_from_left_call();
  // Appends a goodbye and sends it with everything before it, if no thread has the lock or is inside the connection.
  // `receives`: the calling thread has the receive role.
  void try_goodbye(bool receives);

  uint64_t appended_bytes() const;
  bool all_sent() const;

  // Appends a control frame. Returns false if there is no room.
  bool append_control(wire::ControlOrdinal ordinal, kj::ArrayPtr<const capnp::word> message = {});
  uint64_t last_sequence() const { return last_sequence_.load(std::memory_order_relaxed); }

  // --- the session thread's sleep ----------------------------------------------------------------------------------
  enum class Thread : uint8_t { none, awake, asleep, unavailable };
  // For the session thread. Returns false if there is something to send. After true, the next posted frame requests
  // wake_thread.
  bool thread_falls_asleep();
  void thread_woke();
  // Requests the thread without a posted frame. Returns whether the caller must start it.
  bool thread_is_wanted();
  void thread_is_unavailable();

 private:
  link::Link& link_;
  SessionStats& stats_;

  // Guarded by the link's lock:
  // Under construction.
  wire::FrameHeader frame_;
  std::byte* frame_at_ = nullptr;
  Bulk frame_bulk_;
  // The bulk is not copied into the window.
  bool frame_outside_ = false;
  // From begin() until the frame is published; the steps so far can be undone.
  bool appending_ = false;
  uint64_t next_sequence_ = 1;
  Thread thread_ = Thread::none;

  // Written under the lock. Relaxed: readers need a recent value, and nothing is published through it.
  std::atomic<uint64_t> last_sequence_{0};
};

}  // namespace gpuwire::client
