#include "server/replay/completion/event_pool.hpp"

#include "server/driver_table.hpp"

namespace gpuwire::server {

void PooledEvent::reset() {
  if (auto pool = std::move(pool_)) pool->give(event_);
  pool_.reset();
  event_ = nullptr;
}

PooledEvent& PooledEvent::operator=(PooledEvent&& other) noexcept {
  if (this != &other) {
    reset();
    pool_ = std::move(other.pool_);
    event_ = other.event_;
    other.event_ = nullptr;
  }
  return *this;
}

EventPool::~EventPool() {
  if (abandoned_ || !driver_.cuEventDestroy_v2) return;
  for (CUevent event : free_) driver_.cuEventDestroy_v2(event);
}

PooledEvent EventPool::take() {
  CUevent event = nullptr;
  {
    MutexLock lock(mutex_);
    if (abandoned_) return {};
    if (!free_.empty()) {
      event = free_.back();
      free_.pop_back();
      ++taken_;
      return {shared_from_this(), event};
    }
  }
  if (!driver_.cuEventCreate || driver_.cuEventCreate(&event, CU_EVENT_DISABLE_TIMING) != CUDA_SUCCESS) return {};
  MutexLock lock(mutex_);
  ++taken_;
  return {shared_from_this(), event};
}

PooledEvent EventPool::lease() {
  MutexLock lock(mutex_);
  ++taken_;
  return {shared_from_this(), nullptr};
}

void EventPool::give(CUevent event) {
  MutexLock lock(mutex_);
  if (event && !abandoned_) free_.push_back(event);
  if (--taken_ == 0) returned_.notify_all();
}

bool EventPool::all_returned(std::chrono::milliseconds timeout) {
  MutexLock lock(mutex_);
  return returned_.wait_for(lock.native(), timeout, [&]() REQUIRES(mutex_) { return taken_ == 0; });
}

void EventPool::abandon() {
  words_.abandon();
  std::vector<CUevent> unused;
  {
    MutexLock lock(mutex_);
    abandoned_ = true;
    unused.swap(free_);
  }
  if (!driver_.cuEventDestroy_v2) return;
  for (CUevent event : unused) driver_.cuEventDestroy_v2(event);
}

}  // namespace gpuwire::server
