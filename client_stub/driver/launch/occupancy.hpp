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

// What earlier programs asked about a function, on its way: one round trip for all. An answer that is an error is asked
// for again by who wants it. begin(), then finish(), before the function ends; one thread at a time.
class OccupancyAhead {
 public:
  explicit OccupancyAhead(FunctionState& function) noexcept : function_(function) {}

  // All but the question that is kept by `now`, after something has been set for the function so often. Whoever asks
  // about it first gets something to ask.
  void begin(const Caller& caller, KnownOccupancyQuestions& known, std::string_view now, uint64_t settings);
  // finish() may come much later, on another thread (Session::set_aside()).
  void set_aside(const Caller& caller) const noexcept;
  void finish(const Caller& caller);
  size_t size() const noexcept { return entries_.size(); }

 private:
  struct Entry {
    std::string key;
    OccupancyKind kind;
    uint64_t settings = 0, sequence = 0;
  };
  FunctionState& function_;
  std::vector<Entry> entries_;
};

// Blocks per multiprocessor, on the device of the caller's context. Blocks the first time.
CUresult occupancy_blocks(const Caller& caller, FunctionState& function, int block_threads, size_t dynamic_bytes,
                          unsigned flags, int& blocks);

}  // namespace gpuwire::client
