// Leftovers tracks the objects that a sequence leaves in the process, so that the next one can begin as in a fresh
// process.
#pragma once

#include <cstdint>
#include <deque>
#include <set>
#include <string_view>
#include <tuple>
#include <utility>
#include <vector>

#include "calls.hpp"
#include "tasks.hpp"

namespace differential {

// Used on one thread at a time: each line of a sequence, then clear() when the sequence's threads have ended.
class Leftovers {
 public:
  // Called after each call: notes made objects, ended ones, changes of contexts, and sticky errors.
  void note(std::string_view name, const std::vector<Argument>& arguments, const Outcome& outcome);
  // Notes host memory that the sequence has mapped.
  void note_host(void* memory, size_t bytes) { host_.emplace_back(memory, bytes); }
  // Adds a task of the sequence, which leftover work may still run.
  Task& add_task() { return tasks_.emplace_back(); }
  // Ends each leftover object. If that does not restore the former state, ends all contexts with their objects: a
  // context costs a real driver most of a second. Returns whether it ended the contexts.
  bool clear();
  // Whether an error outlives the context: "the process must be terminated and relaunched" (CUDA).
  bool sticky() const { return sticky_; }
  // A wait was refused, so the number of calls of the program's functions varies.
  bool unsettled() const { return unsettled_; }

 private:
  struct Thing {
    size_t row;  // of the table in leftovers.cpp
    uint64_t value;
    uint64_t bytes;
    bool operator<(const Thing& other) const { return std::tie(row, value) < std::tie(other.row, other.value); }
  };

  void note_things(std::string_view name, const std::vector<Argument>& arguments);
  void note_captures(std::string_view name, const std::vector<Argument>& arguments, const Outcome& outcome);
  bool end_things();
  void end_contexts();

  std::vector<uint64_t> contexts_;
  std::set<Thing> things_;
  std::set<uint64_t> capturing_;  // streams
  std::vector<std::pair<void*, size_t>> host_;
  std::deque<Task> tasks_;
  int retained_ = 0;      // device 0's primary context
  bool changed_ = false;  // a context has been changed since it was made
  bool sticky_ = false;
  bool unsettled_ = false;
};

}  // namespace differential
