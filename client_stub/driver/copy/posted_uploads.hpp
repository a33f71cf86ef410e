// Small copies to the device that are told to be done while they are still on their way, and how long that goes
// unnoticed.
#pragma once

#include <cuda.h>

#include <atomic>
#include <cstdint>

namespace gpuwire::client {

struct Caller;

// A blocking copy to the device may be posted as long as all that could look at its data waits for the NULL stream
// anyway: one context, no stream that does not wait for the NULL stream, nothing shared with other processes. Whoever
// changes that calls end() first, which waits until what was posted has arrived; from then on such copies wait for
// themselves.
//
// Any thread; no lock. Between a copy and end() in another thread the session's send lock decides: either end()'s own
// frame is behind the copy, or posted() sees that the end has begun.
class PostedUploads {
 public:
  bool allowed() const noexcept { return state_.load(std::memory_order_relaxed) == State::posting; }
  // Around the frames of a copy that is posted although the program may take it that the data are there. An error is
  // the call's.
  void posting(const Caller& caller) noexcept;
  CUresult posted(const Caller& caller) noexcept;

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

  // All accesses of `state_` and `context_` in posting(), posted() and end() are sequentially consistent or ordered by
  // those: each side writes one of them and then reads the other, so at least one sees what the other wrote. allowed()
  // is a hint that posted() checks.
  std::atomic<State> state_{State::posting};
  std::atomic<uint32_t> context_{0};  // number of the context with the newest such copy; 0: there was none
  std::atomic<uint32_t> contexts_{0};
};

}  // namespace gpuwire::client
