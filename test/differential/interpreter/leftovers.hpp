// What a sequence leaves in the process, so that the next one can begin as in a fresh process.
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
  // After each call: what is made and not ended yet, what is changed of a context, and errors that stay.
  void note(std::string_view name, const std::vector<Argument>& arguments, const Outcome& outcome);
  // The program's own memory that the sequence has mapped.
  void note_host(void* memory, size_t bytes) { host_.emplace_back(memory, bytes); }
  // A task of the sequence, which work may do that it leaves behind.
  Task& add_task() { return tasks_.emplace_back(); }
  // Ends each thing that is left. Where that does not bring back what was, ends all contexts, and with them everything
  // in them: contexts cost a real driver most of a second. Whether it did.
  bool clear();
  // An error that outlives the context, as CUDA says: "the process must be terminated and relaunched".
  bool sticky() const { return sticky_; }
  // A wait was refused, so how often the program's functions have run by now is chance.
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
  bool changed_ = false;  // a context is no longer as it was made
  bool sticky_ = false;
  bool unsettled_ = false;
};

}  // namespace differential
