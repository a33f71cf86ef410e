// How many blocks of a kernel fit on the device: asked once for each set of arguments.
#pragma once

#include <cuda.h>

#include <cstddef>
#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

#include "client_stub/driver/module/module_state.hpp"

namespace gpuwire::client {

// What earlier programs asked about a function, on its way: one round trip for all. An error that does not stay is
// asked for again by who wants it. begin() or begin_all(), then finish(), before the function ends; one thread at a
// time.
class OccupancyAhead {
 public:
  explicit OccupancyAhead(FunctionState& function) noexcept : function_(function) {}

  // In the state in which the function is, all but the question that is kept by `now`. Whoever asks first in a state
  // gets something to ask.
  void begin(const Caller& caller, KnownOccupancyQuestions& known, std::string_view now, const OccupancyState& state);
  // Of a function that the program does not have yet: also in the states that earlier programs brought it to, which the
  // server tries out and takes back.
  void begin_all(const Caller& caller, KnownOccupancyQuestions& known);
  // finish() may come much later, on another thread (Session::set_aside()).
  void set_aside(const Caller& caller) const noexcept;
  // False: what was tried out may not have been taken back, and the function must not be used.
  bool finish(const Caller& caller);
  size_t size() const noexcept { return entries_.size(); }

 private:
  struct Entry {
    std::string key;
    OccupancyKind kind;
    OccupancyState state;
    size_t tries;  // so many of `tries_` had been begun: the last of them is what is asked about; 0: what is
    uint64_t sequence;
  };
  bool begin_try(const Caller& caller, std::string_view state);

  FunctionState& function_;
  std::vector<Entry> entries_;
  std::vector<uint64_t> tries_;  // sequences; the last takes back what the others have set
  bool taken_back_ = true;
};

// Blocks per multiprocessor, on the device of the caller's context. Blocks the first time.
CUresult occupancy_blocks(const Caller& caller, FunctionState& function, int block_threads, size_t dynamic_bytes,
                          unsigned flags, int& blocks);

}  // namespace gpuwire::client
