// How long a session waits for a worker.
#pragma once

#include <algorithm>
#include <chrono>

#include "server/broker/limits.hpp"

namespace gpuwire::server {

// As long as workers of its pool become ready for others, one after the other, it goes on: where many programs begin
// at once the driver starts them in turn. One that hangs holds it for kWorkerWaitMs.
class WorkerWait {
 public:
  using Time = std::chrono::steady_clock::time_point;

  explicit WorkerWait(Time now)
      : ends_(now + std::chrono::milliseconds(kWorkerWaitMs)),
        at_most_(now + std::chrono::milliseconds(kWorkerWaitMostMs)),
        notified_at_(now + std::chrono::milliseconds(kWorkerNotifyMs)) {}

  void worker_ready(Time now) {
    ends_ = std::max(ends_, std::min(at_most_, now + std::chrono::milliseconds(kWorkerWaitMs)));
  }
  Time ends() const noexcept { return ends_; }
  // Its client is to be notified that it waits, so that the client does not regard the server as dead: once, after
  // kWorkerNotifyMs.
  bool must_notify(Time now) noexcept { return !notified_ && now >= notified_at_ && (notified_ = true); }
  // When something is to be done next.
  Time next() const noexcept { return notified_ ? ends_ : std::min(ends_, notified_at_); }

 private:
  Time ends_, at_most_, notified_at_;
  bool notified_ = false;
};

}  // namespace gpuwire::server
