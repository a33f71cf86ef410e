#include "server/worker/session/quiescence.hpp"

#include <utility>

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

void Quiescence::move_blocks(bool back) {
  MutexLock lock(mutex_);
  move_back_ = back;
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

void Quiescence::follow(const Steps& steps) {
  bool released = false;
  std::optional<bool> move_back;
  {
    MutexLock lock(mutex_);
    attention_.store(false, std::memory_order_relaxed);
    released = std::exchange(released_, false);
    move_back = std::exchange(move_back_, std::nullopt);
    if (released) wanted_ = false;
  }
  if (released) steps.go_on();
  else if (move_back) steps.move_blocks(*move_back);
  MutexLock lock(mutex_);
  if (released) quiet_.store(false, std::memory_order_relaxed);
  if (!requested_) return;
  requested_ = false;
  // If the broker repeats its request, it has not received the answer.
  const std::string why = quiet() ? std::string() : steps.rest();
  quiet_.store(why.empty(), std::memory_order_relaxed);
  hooks_.quiet(why);
}

void Quiescence::await_return() {
  MutexLock lock(mutex_);
  if (!wanted_ && !released_) {
    wanted_ = true;
    hooks_.return_wanted();
  }
  changed_.wait(lock.native(), [this]() REQUIRES(mutex_) { return released_ || interrupted_ || move_back_; });
}

}  // namespace gpuwire::server
