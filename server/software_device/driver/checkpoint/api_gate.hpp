// Calls of the driver API that are under way in this process, and a lock that keeps further ones out.
#pragma once

#include <chrono>
#include <condition_variable>
#include <mutex>
#include <optional>

namespace gpuwire::software_device {

// Any thread.
class ApiGate {
 public:
  using Deadline = std::optional<std::chrono::steady_clock::time_point>;  // nothing: however long it takes

  // `used`: without it nothing is counted, and it cannot be locked.
  explicit ApiGate(bool used) : used_(used) {}

  // A call of the thread's own; one that another exported function makes is part of that one's.
  class Call {
   public:
    explicit Call(ApiGate& gate) : gate_(gate) {
      if (gate_.used_) gate_.enter();
    }
    ~Call() {
      if (gate_.used_) gate_.leave();
    }
    Call(const Call&) = delete;
    Call& operator=(const Call&) = delete;

   private:
    ApiGate& gate_;
  };

  // From now on calls wait, and those under way are over. False: they were not in time, and nothing is locked.
  bool lock(const Deadline& deadline);
  void unlock();

 private:
  void enter();
  void leave();

  const bool used_;
  std::mutex mutex_;
  std::condition_variable opened_, emptied_;
  bool locked_ = false;     // under mutex_
  unsigned under_way_ = 0;  // under mutex_
};

}  // namespace gpuwire::software_device
