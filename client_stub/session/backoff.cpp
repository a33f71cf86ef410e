#include "client_stub/session/backoff.hpp"

#include <algorithm>
#include <thread>

namespace gpuwire::client {

bool Backoff::wait() {
  if (until_ ? Clock::now() >= *until_ : waited_ + 1 >= kEnterAttemptsMax) return false;
  auto usual = std::min(kBackoffFirst * (1u << std::min(waited_++, kEnterAttemptsMax)), kBackoffMost);
  std::this_thread::sleep_for(std::uniform_int_distribution<std::chrono::milliseconds::rep>(
                                  usual.count() * 3 / 4, usual.count() * 5 / 4)(random_) *
                              std::chrono::milliseconds(1));
  return true;
}

void Backoff::patient_until(Clock::time_point until) {
  waited_ = 0;
  until_ = until;
}

}  // namespace gpuwire::client
