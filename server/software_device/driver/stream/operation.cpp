#include "server/software_device/driver/stream/operation.hpp"

#include <utility>

namespace gpuwire::software_device {

OperationPtr OperationScheduler::submit(std::function<void()> work, std::span<const OperationPtr> dependencies) {
  const auto run_by = work ? Operation::RunBy::pool : Operation::RunBy::nobody;
  return insert(std::move(work), run_by, dependencies);
}

OperationPtr OperationScheduler::prepare(std::span<const OperationPtr> dependencies) {
  return insert(nullptr, Operation::RunBy::caller, dependencies);
}

OperationPtr OperationScheduler::insert(std::function<void()> work, Operation::RunBy run_by,
                                        std::span<const OperationPtr> dependencies) {
  auto operation = std::make_shared<Operation>();
  operation->work_ = std::move(work);
  operation->run_by_ = run_by;
  const MutexLock lock(mutex_);
  for (const OperationPtr& dependency : dependencies) {
    // The mutex ensures that "done" cannot become true between this check and the registration.
    if (dependency != nullptr && !dependency->done()) {
      dependency->dependents_.push_back(operation);
      ++operation->unfinished_;
    }
  }
  if (operation->unfinished_ == 0) {
    std::vector<OperationPtr> finished;
    make_ready(operation, finished);
    finish_locked(std::move(finished));
  }
  return operation;
}

// Markers finish at once and are added to `finished` for the caller.
void OperationScheduler::make_ready(const OperationPtr& operation, std::vector<OperationPtr>& finished) {
  switch (operation->run_by_) {
    case Operation::RunBy::nobody: finished.push_back(operation); break;
    case Operation::RunBy::caller: something_finished_.notify_all(); break;
    case Operation::RunBy::pool:
      ready_.push_back(operation);
      grow_locked();
      ready_changed_.notify_one();
      break;
  }
}

void OperationScheduler::finish(const OperationPtr& operation) {
  const MutexLock lock(mutex_);
  finish_locked({operation});
}

void OperationScheduler::finish_locked(std::vector<OperationPtr> finished) {
  if (finished.empty()) {
    return;
  }
  while (!finished.empty()) {
    const OperationPtr operation = std::move(finished.back());
    finished.pop_back();
    operation->finished_at_ = Operation::Clock::now();
    operation->done_.store(true, std::memory_order_release);
    for (const OperationPtr& dependent : std::exchange(operation->dependents_, {})) {
      if (--dependent->unfinished_ == 0) {
        make_ready(dependent, finished);
      }
    }
  }
  something_finished_.notify_all();
}

void OperationScheduler::grow_locked() {
  if (idle_threads_ < ready_.size() && threads_.size() < kThreadsMax) {
    threads_.emplace_back([this] { work_loop(); });
  }
}

void OperationScheduler::work_loop() {
  MutexLock lock(mutex_);
  for (;;) {
    ++idle_threads_;
    ready_changed_.wait(lock.native(), [this]() REQUIRES(mutex_) { return !ready_.empty(); });
    --idle_threads_;
    const OperationPtr operation = std::move(ready_.front());
    ready_.pop_front();
    lock.unlock();
    std::exchange(operation->work_, nullptr)();
    finish(operation);
    lock.lock();
  }
}

void OperationScheduler::run_here(const OperationPtr& operation, const std::function<void()>& work) {
  {
    MutexLock lock(mutex_);
    something_finished_.wait(lock.native(), [&]() REQUIRES(mutex_) { return operation->unfinished_ == 0; });
  }
  work();
  finish(operation);
}

void OperationScheduler::wait(const Operation& operation) {
  if (operation.done()) {
    return;
  }
  MutexLock lock(mutex_);
  something_finished_.wait(lock.native(), [&]() REQUIRES(mutex_) { return operation.done(); });
}

bool OperationScheduler::wait_for(const Operation& operation, std::chrono::milliseconds timeout) {
  MutexLock lock(mutex_);
  return something_finished_.wait_for(lock.native(), timeout, [&]() REQUIRES(mutex_) { return operation.done(); });
}

}  // namespace gpuwire::software_device
