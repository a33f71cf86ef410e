// Blocking copies to the device that return while they are still in flight, and the conditions under which no program
// can notice.
#pragma once

#include <cuda.h>

#include <atomic>
#include <cstdint>

namespace gpuwire::client {

struct Caller;
struct StreamState;

// Natively, a copy from the host to the device of at most this size does not wait for earlier work either (CUDA
// programming guide, "Asynchronous concurrent execution"). A longer copy does, so a program may conclude from it that
// earlier work is done.
inline constexpr size_t kCopyBesideWorkBytesMax = 64u << 10;

// A blocking copy to the device may be posted while every reader of its data waits for it anyway. The conditions are:
// streams wait for the NULL stream, or the server makes them wait for the copy (UploadOrder; without it there must be
// no other stream); there is one context; nothing is shared with other processes. A caller that changes one of these
// conditions calls end() first, which waits until the posted copies have arrived; from then on such copies wait for
// themselves. The host must also see no effects of work before the copy that may still change: see unseen_by_host().
//
// The same holds for a program that waits for the NULL stream behind nothing but copies of memory that it may change
// already (notify_stream_done()).
//
// Any thread; no lock. Between a copy and end() in another thread the session's send lock decides: either end()'s own
// frame is behind the copy, or posted() sees that the end has begun.
class PostedUploads {
 public:
  bool allowed(const Caller& caller, size_t bytes) const noexcept {
    return state_.load(std::memory_order_relaxed) == State::posting &&
           (bytes <= kCopyBesideWorkBytesMax || unseen_by_host(caller));
  }
  // Called before and after the frames of a copy that is posted although the program may assume that the data have
  // arrived. The call returns the error.
  void posting(const Caller& caller) noexcept;
  CUresult posted(const Caller& caller, uint64_t sequence, size_t bytes) noexcept;

  // Called when the program waits for the NULL stream. Returns true if all unfinished work there consists of copies to
  // the device whose sources the program may already change; the call then returns at once, with `error`.
  bool notify_stream_done(const Caller& caller, const StreamState& stream, uint64_t wire_stream,
                          CUresult& error) noexcept;

  // Called when the program asks about unfinished work up to frame `sequence`. If a longer copy that was reported as
  // done is the last of that work or follows it, the program may assume that all of the work is done. This function
  // then waits for the copy.
  void settle(const Caller& caller, uint64_t sequence) noexcept;

  // A stream that does not wait for the NULL stream is about to be created.
  void stream_beside_begins(const Caller& caller) noexcept;
  bool any_stream_beside() const noexcept { return streams_beside_.load(std::memory_order_relaxed); }

  // Work that waits neither for the NULL stream nor for copies is about to begin. Precondition: not in a host function
  // of the program, for which that stream may wait.
  void end(const Caller& caller) noexcept;
  // Counts the contexts at the server; with a second one, copies are no longer posted.
  void context_begins() noexcept { contexts_.fetch_add(1, std::memory_order_relaxed); }
  void context_ends() noexcept { contexts_.fetch_sub(1, std::memory_order_relaxed); }
  bool several_contexts() const noexcept { return contexts_.load(std::memory_order_relaxed) > 1; }
  void end_if_several_contexts(const Caller& caller) noexcept {
    if (several_contexts()) end(caller);
  }

 private:
  enum class State : uint8_t { posting, ending, ended };

  // Returns whether no work in flight can write to memory of the program, or call it.
  static bool unseen_by_host(const Caller& caller) noexcept;
  void await(const Caller& caller, uint32_t context) noexcept;

  // All accesses of `state_` and `context_` in posting(), posted() and end() are sequentially consistent or ordered by
  // those: each side writes one of them and then reads the other, so at least one side sees the other's write.
  // allowed() is a hint that posted() checks.
  std::atomic<State> state_{State::posting};
  // Number of the context with the newest such copy; 0: there was none.
  std::atomic<uint32_t> context_{0};
  std::atomic<uint32_t> contexts_{0};
  // Frames of the newest posted copies: of any size that was reported as done, of a longer one, and of one that is
  // known to have arrived. Relaxed: a thread learns of another thread's copy by synchronising with it.
  std::atomic<uint64_t> notified_any_{0}, notified_{0}, arrived_{0};
  // There was a stream that does not wait for the NULL stream. Relaxed: a thread that uses another's stream has
  // synchronised with it.
  std::atomic<bool> streams_beside_{false};
};

}  // namespace gpuwire::client
