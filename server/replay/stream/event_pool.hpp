// Events that the replay itself needs, one pool for each context: they report the end of a staged copy or a
// synchronised stream.
#pragma once

#include <cuda.h>

#include <chrono>
#include <condition_variable>
#include <memory>
#include <mutex>
#include <vector>

#include "server/replay/stream/completion_words.hpp"

namespace gpuwire::server {

struct DriverTable;
class EventPool;

// One event, or none; given back to its pool when destroyed. A lease without an event only keeps the pool's context
// from being destroyed.
class PooledEvent {
 public:
  PooledEvent() = default;
  PooledEvent(std::shared_ptr<EventPool> pool, CUevent event) : pool_(std::move(pool)), event_(event) {}
  PooledEvent(PooledEvent&& other) noexcept : pool_(std::move(other.pool_)), event_(other.event_) {
    other.event_ = nullptr;
  }
  PooledEvent& operator=(PooledEvent&& other) noexcept;
  ~PooledEvent() { reset(); }
  void reset();
  CUevent get() const { return event_; }
  explicit operator bool() const { return event_ != nullptr; }

 private:
  std::shared_ptr<EventPool> pool_;
  CUevent event_ = nullptr;
};

// Any thread; the context is current on the one that calls take().
class EventPool : public std::enable_shared_from_this<EventPool> {
 public:
  // `write`: as for CompletionWords.
  explicit EventPool(const DriverTable& driver, WriteWord write = nullptr) : driver_(driver), words_(driver, write) {}
  ~EventPool();

  // Empty when the driver gives no event.
  PooledEvent take();
  PooledEvent lease();
  // Called by the holder of an event of the pool, which releases the word before it.
  CompletionWords& words() { return words_; }
  // Waits until everything taken is back. False: it took longer than that.
  bool all_returned(std::chrono::milliseconds timeout);
  // The context is about to go: free events are destroyed, the others with it.
  void abandon();

 private:
  friend class PooledEvent;
  void give(CUevent event);

  const DriverTable& driver_;
  std::mutex mutex_;
  std::condition_variable returned_;
  std::vector<CUevent> free_;
  size_t taken_ = 0;
  bool abandoned_ = false;
  CompletionWords words_;
};

}  // namespace gpuwire::server
