// Waits for the broker's answer to a request, although the broker may end and another one may take its place.
#pragma once

#include <chrono>
#include <cstdint>
#include <mutex>

#include "protocol/threads/condition.hpp"

namespace gpuwire::server::ipc {

// While there is no broker, a request waits for this long; then it counts as unanswered.
inline constexpr std::chrono::seconds kUnattendedWait{60};

// Used under the mutex of the requesting object. The broker ends (away), and another one takes its place (back), which
// has not received the requests to the previous one.
class AnswerWait {
 public:
  void away() { away_ = true; }
  void back() {
    away_ = false;
    ++epoch_;
  }

  // `ask` sends the request, once to each broker; false: it could not be sent. True: `answered` became true within
  // `at_most` of a request.
  template <class Ask, class Answered>
  bool wait(std::unique_lock<std::mutex>& lock, Condition& changed, std::chrono::milliseconds at_most, Ask&& ask,
            Answered&& answered) {
    for (;;) {
      const uint64_t asked = epoch_;
      if (!ask() && !away_) return false;
      auto other = [&] { return answered() || epoch_ != asked; };
      // A broker may end after the request: then the longer time limit begins.
      bool heard = changed.wait_for(lock, at_most, [&] { return other() || away_; });
      if (heard && !other()) heard = changed.wait_for(lock, kUnattendedWait, other);
      if (answered()) return true;
      if (!heard) return false;
    }
  }

 private:
  bool away_ = false;
  uint64_t epoch_ = 0;
};

}  // namespace gpuwire::server::ipc
