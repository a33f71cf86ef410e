#include "server/worker/session/waiter_pool.hpp"

#include "server/worker/connection/limits.hpp"

namespace gpuwire::server {

void WaiterPool::finish() {
  {
    MutexLock lock(mutex_);
    ending_ = true;
  }
  work_.notify_all();
  for (std::thread& thread : threads_) thread.join();
  threads_.clear();
}

bool WaiterPool::crowded() {
  MutexLock lock(mutex_);
  return threads_.size() - idle_ + tasks_.size() >= kWaitersMax;
}

bool WaiterPool::idle() {
  MutexLock lock(mutex_);
  return tasks_.empty() && idle_ == threads_.size();
}

bool WaiterPool::run(Task task) {
  MutexLock lock(mutex_);
  if (idle_ == tasks_.size()) {
    if (threads_.size() == kBlockedWaitersMax) return false;
    threads_.emplace_back([this] { serve(); });
    ++idle_;
  }
  tasks_.push_back(std::move(task));
  lock.unlock();
  work_.notify_one();
  return true;
}

void WaiterPool::serve() {
  enter_();
  MutexLock lock(mutex_);
  for (;;) {
    work_.wait(lock.native(), [&]() REQUIRES(mutex_) { return ending_ || !tasks_.empty(); });
    if (tasks_.empty()) return;
    Task task = std::move(tasks_.front());
    tasks_.pop_front();
    --idle_;
    lock.unlock();
    task();
    task = nullptr;  // its objects are released outside the lock
    lock.lock();
    ++idle_;
  }
}

}  // namespace gpuwire::server
