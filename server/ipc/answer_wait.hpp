// How long a question to the broker waits for its answer, when the broker may be away for a while and another one come
// in its place.
#pragma once

#include <chrono>
#include <condition_variable>
#include <cstdint>
#include <mutex>

namespace gpuwire::server::ipc {

// While there is no broker, a question waits for this long; then it counts as not answered.
inline constexpr std::chrono::seconds kUnattendedWait{60};

// Under the mutex of the asking object. The broker goes (away), and another one comes (back), which has not received
// the questions to the one before.
class AnswerWait {
 public:
  void away() { away_ = true; }
  void back() {
    away_ = false;
    ++epoch_;
  }

  // `ask` asks, false when it could not be said; once for each broker there is. True: `answered` has become true,
  // within `at_most` of a broker's having been asked.
  template <class Ask, class Answered>
  bool wait(std::unique_lock<std::mutex>& lock, std::condition_variable& changed, std::chrono::milliseconds at_most,
            Ask&& ask, Answered&& answered) {
    for (;;) {
      const uint64_t asked = epoch_;
      if (!ask() && !away_) return false;
      auto other = [&] { return answered() || epoch_ != asked; };
      // A broker may go after it was asked: then the longer time counts from there.
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
