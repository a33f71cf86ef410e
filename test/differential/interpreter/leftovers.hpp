// What a sequence leaves in the process, so that the next one can begin as in a fresh process.
#pragma once

#include <cstdint>
#include <string_view>
#include <vector>

#include "calls.hpp"

namespace differential {

// Used on one thread at a time: each line of a sequence, then clear() when the sequence's threads have ended.
class Leftovers {
 public:
  // After each call: contexts that are made and not destroyed yet, how often the primary one is retained, and errors
  // that stay.
  void note(std::string_view name, const std::vector<Argument>& arguments, const Outcome& outcome);
  // Ends contexts, and with them everything in them.
  void clear();
  // An error that outlives the context, as CUDA says: "the process must be terminated and relaunched".
  bool sticky() const { return sticky_; }
  // A wait was refused, so how often the program's functions have run by now is chance.
  bool unsettled() const { return unsettled_; }

 private:
  std::vector<uint64_t> contexts_;
  int retained_ = 0;  // device 0's
  bool sticky_ = false;
  bool unsettled_ = false;
};

}  // namespace differential
