// The driver's answers about the occupancy of one function, by its settings.
#pragma once

#include <cuda.h>

#include <cstdint>
#include <map>
#include <string>
#include <string_view>
#include <utility>

#include "client_stub/driver/state/launch/occupancy_settings.hpp"
#include "protocol/threads/mutex.hpp"

namespace gpuwire::client {

inline constexpr size_t kOccupancyAnswersMax = 512;  // kept per function; all are dropped when there are more
inline constexpr size_t kOccupancyQuestionBytesMax = 2048;

// The driver's answer to a question. The impossibility of a configuration is an answer, too: CUDA's libraries learn
// from it how large clusters may be.
struct OccupancyAnswer {
  CUresult result = CUDA_SUCCESS;
  // 0 with an error.
  uint64_t value = 0;

  // Returns whether the same question would get this answer again.
  bool stays() const noexcept {
    return result == CUDA_SUCCESS || result == CUDA_ERROR_INVALID_VALUE || result == CUDA_ERROR_INVALID_CLUSTER_SIZE;
  }
};

// Any thread; one leaf lock.
class OccupancyAnswers {
 public:
  // Finds the answer of a question. Returns false if it is not known; `state`, on that device, is then the argument for
  // keep().
  bool find(std::string_view question, int device, OccupancyAnswer& answer, OccupancyState& state) const {
    MutexLock lock(mutex_);
    state = settings_.state(device);
    auto known = answers_.find(whole(state, question));
    if (known == answers_.end()) return false;
    answer = known->second;
    return true;
  }
  // Stores an answer that stays, unless a setting has changed since the question was sent.
  void keep(std::string_view question, const OccupancyAnswer& answer, const OccupancyState& state) {
    MutexLock lock(mutex_);
    if (state.version == settings_.version()) add(question, answer, state);
  }
  // Stores an answer for a certain state that the function may reach later.
  void keep_prefetched(std::string_view question, const OccupancyAnswer& answer, const OccupancyState& state) {
    MutexLock lock(mutex_);
    add(question, answer, state);
  }
  // Notes a setting on which the answers may depend.
  void set(const OccupancySettings::Setting& setting) {
    MutexLock lock(mutex_);
    settings_.set(setting);
  }
  OccupancySettings settings() const {
    MutexLock lock(mutex_);
    return settings_;
  }
  // Sets the settings of a function that was made from another one.
  void begin_with(OccupancySettings settings) {
    MutexLock lock(mutex_);
    settings_ = std::move(settings);
  }

 private:
  static std::string whole(const OccupancyState& state, std::string_view question) {
    return state.key().append(1, '\0').append(question);
  }
  void add(std::string_view question, const OccupancyAnswer& answer, const OccupancyState& state) REQUIRES(mutex_) {
    if (question.size() > kOccupancyQuestionBytesMax || !answer.stays()) return;
    if (answers_.size() >= kOccupancyAnswersMax) answers_.clear();
    answers_.insert_or_assign(whole(state, question), answer);
  }

  mutable Mutex mutex_;
  OccupancySettings settings_ GUARDED_BY(mutex_);
  std::map<std::string, OccupancyAnswer, std::less<>> answers_ GUARDED_BY(mutex_);
};

}  // namespace gpuwire::client
