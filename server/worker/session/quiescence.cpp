#include "server/worker/session/quiescence.hpp"

namespace gpuwire::server {

void Quiescence::request() {
  MutexLock lock(mutex_);
  requested_ = true;
  attention_.store(true, std::memory_order_relaxed);
  hooks_.wake();
}

void Quiescence::go_on() {
  MutexLock lock(mutex_);
  requested_ = false;
  if (!quiet()) return;
  released_ = true;
  attention_.store(true, std::memory_order_relaxed);
  hooks_.wake();
  changed_.notify_one();
}

void Quiescence::repeat() {
  MutexLock lock(mutex_);
  if (!quiet() || released_) return;
  hooks_.quiet({});
  if (wanted_) hooks_.return_wanted();
}

void Quiescence::interrupt() {
  MutexLock lock(mutex_);
  interrupted_ = true;
  changed_.notify_one();
}

void Quiescence::follow(const std::function<std::string()>& why_not, const std::function<void()>& go_on) {
  MutexLock lock(mutex_);
  attention_.store(false, std::memory_order_relaxed);
  if (released_) {
    released_ = wanted_ = false;
    quiet_.store(false, std::memory_order_relaxed);
    go_on();
  }
  if (!requested_) return;
  requested_ = false;
  // If the broker repeats its request, it has not received the answer.
  const std::string why = quiet() ? std::string() : why_not();
  quiet_.store(why.empty(), std::memory_order_relaxed);
  hooks_.quiet(why);
}

void Quiescence::await_return() {
  MutexLock lock(mutex_);
  if (!wanted_ && !released_) {
    wanted_ = true;
    hooks_.return_wanted();
  }
  changed_.wait(lock.native(), [this]() REQUIRES(mutex_) { return released_ || interrupted_; });
}

}  // namespace gpuwire::server
