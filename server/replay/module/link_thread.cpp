#include "server/replay/module/link_thread.hpp"

#include <utility>

namespace gpuwire::server {

LinkThread::~LinkThread() {
  {
    MutexLock lock(mutex_);
    ending_ = true;
  }
  changed_.notify_all();
  if (thread_.joinable()) thread_.join();
}

void LinkThread::run(std::function<void()> task) {
  {
    MutexLock lock(mutex_);
    tasks_.push_back(std::move(task));
    ++open_;
  }
  changed_.notify_all();
  if (!thread_.joinable()) thread_ = std::thread([this] { serve(); });
}

void LinkThread::run_and_wait(std::function<void()> task) {
  run(std::move(task));
  MutexLock lock(mutex_);
  changed_.wait(lock.native(), [this]() REQUIRES(mutex_) { return open_ == 0; });
}

bool LinkThread::finish(std::chrono::milliseconds patience) {
  MutexLock lock(mutex_);
  return changed_.wait_for(lock.native(), patience, [this]() REQUIRES(mutex_) { return open_ == 0; });
}

void LinkThread::serve() {
  MutexLock lock(mutex_);
  for (;;) {
    changed_.wait(lock.native(), [this]() REQUIRES(mutex_) { return ending_ || !tasks_.empty(); });
    if (tasks_.empty()) return;
    std::function<void()> task = std::move(tasks_.front());
    tasks_.pop_front();
    lock.unlock();
    task();
    task = nullptr;  // its objects are released outside the lock
    lock.lock();
    --open_;
    changed_.notify_all();
  }
}

}  // namespace gpuwire::server
