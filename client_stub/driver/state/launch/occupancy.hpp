// How many blocks of a kernel fit on the device: asked once for each set of arguments.
#pragma once

#include <cuda.h>

#include <cstddef>
#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

#include "client_stub/driver/state/module/module_state.hpp"

namespace gpuwire::client {

// The questions of earlier programs about a function, on their way: one round trip for all. A question whose error does
// not stay is asked again by its caller. begin() or begin_all(), then finish(), before the function ends; one thread at
// a time.
class OccupancyPrefetch {
 public:
  explicit OccupancyPrefetch(FunctionState& function) noexcept : function_(function) {}

  // For the present state of the function: all but the question that `now` stores. The first caller in a state gets
  // something to ask.
  void begin(const Caller& caller, ProfiledOccupancyQuestions& known, std::string_view now,
             const OccupancyState& state);
  // For a function that the program does not have yet: also for the states into which earlier programs brought it,
  // which the server tries out and takes back.
  void begin_all(const Caller& caller, ProfiledOccupancyQuestions& known);
  // finish() may come much later, on another thread (Session::set_aside()).
  void set_aside(const Caller& caller) const noexcept;
  // False: the tried attributes may not have been restored, and the function must not be used.
  bool finish(const Caller& caller);
  size_t size() const noexcept { return entries_.size(); }

 private:
  struct Entry {
    std::string key;
    OccupancyKind kind;
    OccupancyState state;
    size_t tries;  // the number of `tries_` that had been begun: the question is about the last of them; 0: about the
                   // present state
    uint64_t sequence;
  };
  bool begin_try(const Caller& caller, std::string_view state);

  FunctionState& function_;
  std::vector<Entry> entries_;
  std::vector<uint64_t> tries_;  // sequences; the last restores the attributes of the others
  bool taken_back_ = true;
};

// The answer from the function's cache, or from the server and cached.
OccupancyAnswer occupancy_answer(const Caller& caller, FunctionState& function, const OccupancyQuestion& question);
// The stream of the configuration says which context is meant, and NULL means the current one (CUDA driver API,
// cuOccupancyMaxActiveClusters). No work goes there, so a capture minds nothing: another stream of the current context
// travels in the NULL stream's place.
CUlaunchConfig without_null_stream(CUlaunchConfig config);
// Blocks per multiprocessor, on the device of the caller's context. Blocks the first time.
CUresult occupancy_blocks(const Caller& caller, FunctionState& function, int block_threads, size_t dynamic_bytes,
                          unsigned flags, int& blocks);

}  // namespace gpuwire::client
