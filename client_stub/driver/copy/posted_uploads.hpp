// Blocking copies to the device that are told to be done while they are still on their way, and how long that goes
// unnoticed.
#pragma once

#include <cuda.h>

#include <atomic>
#include <cstdint>

namespace gpuwire::client {

struct Caller;

// A copy of at most so much from the host to the device waits for no earlier work natively either (CUDA programming
// guide, "Asynchronous concurrent execution"). A longer one does: a program may take what was sent before it for done.
inline constexpr size_t kCopyBesideWorkBytesMax = 64u << 10;

// A blocking copy to the device may be posted as long as all that could look at its data waits for the NULL stream
// anyway: one context, no stream that does not wait for the NULL stream, nothing shared with other processes. Whoever
// changes that calls end() first, which waits until what was posted has arrived; from then on such copies wait for
// themselves. And the host must have nothing to look at that work before the copy may still change: see
// unseen_by_host().
//
// Any thread; no lock. Between a copy and end() in another thread the session's send lock decides: either end()'s own
// frame is behind the copy, or posted() sees that the end has begun.
class PostedUploads {
 public:
  bool allowed(const Caller& caller, size_t bytes) const noexcept {
    return state_.load(std::memory_order_relaxed) == State::posting &&
           (bytes <= kCopyBesideWorkBytesMax || unseen_by_host(caller));
  }
  // Around the frames of a copy that is posted although the program may take it that the data are there. An error is
  // the call's.
  void posting(const Caller& caller) noexcept;
  CUresult posted(const Caller& caller, uint64_t sequence, size_t bytes) noexcept;

  // The program asks about work up to frame `sequence` that is not known to be done. If it has been told that a longer
  // copy is done which is the last of that work or comes behind it, all of it is: waits for the copy then.
  void settle(const Caller& caller, uint64_t sequence) noexcept;

  // Something is about to be that does not wait for the NULL stream. Not in a host function of the program, for which
  // that stream may wait.
  void end(const Caller& caller) noexcept;
  // Contexts at the server; with a second one it is over.
  void context_begins() noexcept { contexts_.fetch_add(1, std::memory_order_relaxed); }
  void context_ends() noexcept { contexts_.fetch_sub(1, std::memory_order_relaxed); }
  bool several_contexts() const noexcept { return contexts_.load(std::memory_order_relaxed) > 1; }
  void end_if_several_contexts(const Caller& caller) noexcept {
    if (several_contexts()) end(caller);
  }

 private:
  enum class State : uint8_t { posting, ending, ended };

  // Can none of the work under way write to memory of the program, or call it?
  static bool unseen_by_host(const Caller& caller) noexcept;
  void await(const Caller& caller, uint32_t context) noexcept;

  // All accesses of `state_` and `context_` in posting(), posted() and end() are sequentially consistent or ordered by
  // those: each side writes one of them and then reads the other, so at least one sees what the other wrote. allowed()
  // is a hint that posted() checks.
  std::atomic<State> state_{State::posting};
  std::atomic<uint32_t> context_{0};  // number of the context with the newest such copy; 0: there was none
  std::atomic<uint32_t> contexts_{0};
  // Frames of the newest longer copies: one that the program was told of, and one that is known to have arrived. A
  // thread knows of another's copy by synchronising with it: relaxed.
  std::atomic<uint64_t> told_{0}, arrived_{0};
};

}  // namespace gpuwire::client
