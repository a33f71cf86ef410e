// ApiGate counts the running calls of the driver API in this process, and can block further ones.
#pragma once

#include <chrono>
#include <optional>

#include "protocol/threads/condition.hpp"
#include "protocol/threads/mutex.hpp"

namespace gpuwire::software_device {

// Thread: any.
class ApiGate {
 public:
  using Deadline = std::optional<std::chrono::steady_clock::time_point>;  // empty: no time limit

  // `used` false: calls are not counted, and the gate cannot be locked.
  explicit ApiGate(bool used) : used_(used) {}

  // A call of the thread's own. A call that another exported function makes belongs to that function's call.
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

  // Blocks further calls and waits for the running ones. Returns false, and locks nothing, if they do not end in time.
  bool lock(const Deadline& deadline);
  void unlock();

 private:
  void enter();
  void leave();

  const bool used_;
  Mutex mutex_;
  gpuwire::Condition opened_, emptied_;
  bool locked_ GUARDED_BY(mutex_) = false;
  unsigned under_way_ GUARDED_BY(mutex_) = 0;
};

}  // namespace gpuwire::software_device
