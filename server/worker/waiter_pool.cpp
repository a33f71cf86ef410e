#include "server/worker/waiter_pool.hpp"

#include "server/worker/limits.hpp"

namespace gpuwire::server {

void WaiterPool::finish() {
  {
    std::lock_guard lock(mutex_);
    ending_ = true;
  }
  work_.notify_all();
  for (std::thread& thread : threads_) thread.join();
  threads_.clear();
}

void WaiterPool::run(Task task) {
  std::unique_lock lock(mutex_);
  room_.wait(lock, [&] { return idle_ > tasks_.size() || threads_.size() < kWaitersMax; });
  if (idle_ == tasks_.size()) {
    threads_.emplace_back([this] { serve(); });
    ++idle_;
  }
  tasks_.push_back(std::move(task));
  lock.unlock();
  work_.notify_one();
}

void WaiterPool::serve() {
  enter_();
  std::unique_lock lock(mutex_);
  for (;;) {
    work_.wait(lock, [&] { return ending_ || !tasks_.empty(); });
    if (tasks_.empty()) return;
    Task task = std::move(tasks_.front());
    tasks_.pop_front();
    --idle_;
    lock.unlock();
    task();
    task = nullptr;  // what it holds is released outside the lock
    lock.lock();
    ++idle_;
    room_.notify_one();
  }
}

}  // namespace gpuwire::server
