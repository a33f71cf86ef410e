// What the driver has answered about the occupancy of one function, and for which settings.
#pragma once

#include <cuda.h>

#include <cstdint>
#include <map>
#include <mutex>
#include <string>
#include <string_view>
#include <utility>

#include "client_stub/driver/launch/occupancy_settings.hpp"

namespace gpuwire::client {

inline constexpr size_t kOccupancyAnswersMax = 512;  // kept per function; all are dropped when there are more
inline constexpr size_t kOccupancyQuestionBytesMax = 2048;

// What the driver has answered to a question. That a configuration cannot be is an answer, too: CUDA's libraries find
// out by it how large clusters may be.
struct OccupancyAnswer {
  CUresult result = CUDA_SUCCESS;
  uint64_t value = 0;  // 0 with an error

  // Is it one that the same question gets again?
  bool stays() const noexcept {
    return result == CUDA_SUCCESS || result == CUDA_ERROR_INVALID_VALUE || result == CUDA_ERROR_INVALID_CLUSTER_SIZE;
  }
};

// Any thread; one leaf lock.
class OccupancyAnswers {
 public:
  // False: not known; `state`, on that device, is then what keep() wants to be given.
  bool find(std::string_view question, int device, OccupancyAnswer& answer, OccupancyState& state) const {
    std::lock_guard lock(mutex_);
    state = settings_.state(device);
    auto known = answers_.find(whole(state, question));
    if (known == answers_.end()) return false;
    answer = known->second;
    return true;
  }
  // Unless something has been set since the question was put, or it does not stay.
  void keep(std::string_view question, const OccupancyAnswer& answer, const OccupancyState& state) {
    std::lock_guard lock(mutex_);
    if (state.version == settings_.version()) add(question, answer, state);
  }
  // What is answered in a state that the function may come to be in; a certain one.
  void keep_ahead(std::string_view question, const OccupancyAnswer& answer, const OccupancyState& state) {
    std::lock_guard lock(mutex_);
    add(question, answer, state);
  }
  // Something that the answers may depend on has been set.
  void set(const OccupancySettings::Setting& setting) {
    std::lock_guard lock(mutex_);
    settings_.set(setting);
  }
  OccupancySettings settings() const {
    std::lock_guard lock(mutex_);
    return settings_;
  }
  // Of a function that was made of another.
  void begin_with(OccupancySettings settings) {
    std::lock_guard lock(mutex_);
    settings_ = std::move(settings);
  }

 private:
  static std::string whole(const OccupancyState& state, std::string_view question) {
    return state.key().append(1, '\0').append(question);
  }
  void add(std::string_view question, const OccupancyAnswer& answer, const OccupancyState& state) {
    if (question.size() > kOccupancyQuestionBytesMax || !answer.stays()) return;
    if (answers_.size() >= kOccupancyAnswersMax) answers_.clear();
    answers_.insert_or_assign(whole(state, question), answer);
  }

  mutable std::mutex mutex_;
  OccupancySettings settings_;
  std::map<std::string, OccupancyAnswer, std::less<>> answers_;
};

}  // namespace gpuwire::client
