// The number of a kernel's blocks that fit on the device, requested once for each set of arguments.
#pragma once

#include <cuda.h>

#include <cstddef>
#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

#include "client_stub/driver/state/module/module_state.hpp"

namespace gpuwire::client {

// Prefetches the answers to the queries of earlier programs about a function, in one round trip. A query whose error is
// not cached is sent again by its caller. begin() or begin_all(), then finish(), before the function ends; one thread
// at a time.
class OccupancyPrefetch {
 public:
  explicit OccupancyPrefetch(FunctionState& function) noexcept : function_(function) {}

  // For the present state of the function: sends all queries but the one that `now` stores. Only the first caller in a
  // state has queries to send.
  void begin(const Caller& caller, ProfiledOccupancyQuestions& known, std::string_view now,
             const OccupancyState& state);
  // For a function that the program does not have yet: also for the states into which earlier programs brought it,
  // which the server applies and reverts.
  void begin_all(const Caller& caller, ProfiledOccupancyQuestions& known);
  // finish() may come much later, on another thread (Session::set_aside()).
  void set_aside(const Caller& caller) const noexcept;
  // Returns false if the tried attributes may not have been restored; the function must then not be used.
  bool finish(const Caller& caller);
  size_t size() const noexcept { return entries_.size(); }

 private:
  struct Entry {
    std::string key;
    OccupancyKind kind;
    OccupancyState state;
    // The number of `tries_` that had been begun: the question is about the last of them; 0: about the present state.
    size_t tries;
    uint64_t sequence;
  };
  bool begin_try(const Caller& caller, std::string_view state);

  FunctionState& function_;
  std::vector<Entry> entries_;
  // Sequences; the last restores the attributes of the others.
  std::vector<uint64_t> tries_;
  bool taken_back_ = true;
};

// Returns the answer from the function's cache, or from the server; caches it.
OccupancyAnswer occupancy_answer(const Caller& caller, FunctionState& function, const OccupancyQuestion& question);
// Replaces the NULL stream by another stream of the current context. The stream only selects the context (CUDA driver
// API, cuOccupancyMaxActiveClusters): the query sends no work to it, so captures must not refuse the call.
CUlaunchConfig without_null_stream(CUlaunchConfig config);
// Returns the blocks per multiprocessor, on the device of the caller's context. Waits the first time.
CUresult occupancy_blocks(const Caller& caller, FunctionState& function, int block_threads, size_t dynamic_bytes,
                          unsigned flags, int& blocks);

}  // namespace gpuwire::client
