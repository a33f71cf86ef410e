// What the driver has answered about the occupancy of one function, as long as nothing is set that it may depend on.
#pragma once

#include <cstdint>
#include <map>
#include <mutex>
#include <string>
#include <string_view>

namespace gpuwire::client {

inline constexpr size_t kOccupancyAnswersMax = 256;  // kept per function; all are dropped when there are more
inline constexpr size_t kOccupancyQuestionBytesMax = 2048;

// Any thread; one leaf lock.
class OccupancyAnswers {
 public:
  // False: not known; `settings` is then what keep() wants to be given.
  bool find(std::string_view question, uint64_t& value, uint64_t& settings) const {
    std::lock_guard lock(mutex_);
    settings = settings_;
    auto known = answers_.find(question);
    if (known == answers_.end()) return false;
    value = known->second;
    return true;
  }
  // Unless something has been set since the question was put.
  void keep(std::string_view question, uint64_t value, uint64_t settings) {
    std::lock_guard lock(mutex_);
    if (settings != settings_ || question.size() > kOccupancyQuestionBytesMax) return;
    if (answers_.size() >= kOccupancyAnswersMax) answers_.clear();
    answers_.emplace(question, value);
  }
  // Something that the answers may depend on has been set.
  void forget() noexcept {
    std::lock_guard lock(mutex_);
    ++settings_;
    answers_.clear();
  }

 private:
  mutable std::mutex mutex_;
  uint64_t settings_ = 0;  // how often something has been set
  std::map<std::string, uint64_t, std::less<>> answers_;
};

}  // namespace gpuwire::client
