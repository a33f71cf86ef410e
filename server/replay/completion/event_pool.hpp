// Events for the replay's own use, one pool for each context: they report the end of a staged copy or of a stream's
// work.
#pragma once

#include <cuda.h>

#include <chrono>
#include <memory>
#include <vector>

#include "protocol/threads/condition.hpp"
#include "protocol/threads/mutex.hpp"
#include "server/replay/completion/completion_words.hpp"

namespace gpuwire::server {

struct DriverTable;
class EventPool;

// One event, or none; its destructor returns it to its pool. A lease has no event and only delays the destruction of
// the pool's context.
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

// Any thread; the context is current on a thread that calls take().
class EventPool : public std::enable_shared_from_this<EventPool> {
 public:
  // `write`: as for CompletionWords.
  explicit EventPool(const DriverTable& driver, WriteWord write = nullptr) : driver_(driver), words_(driver, write) {}
  ~EventPool();

  // Returns an event. The result is empty if the driver creates none.
  PooledEvent take();
  PooledEvent lease();
  // Called by the holder of an event of the pool, who releases the word before the event.
  CompletionWords& words() { return words_; }
  // Waits until all events and leases are returned. Returns false if some are still out after `timeout`.
  bool all_returned(std::chrono::milliseconds timeout);
  // Destroys the free events. Called before the context ends, which destroys the others.
  void abandon();

 private:
  friend class PooledEvent;
  void give(CUevent event);

  const DriverTable& driver_;
  Mutex mutex_;
  Condition returned_;
  std::vector<CUevent> free_ GUARDED_BY(mutex_);
  size_t taken_ GUARDED_BY(mutex_) = 0;
  bool abandoned_ GUARDED_BY(mutex_) = false;
  CompletionWords words_;
};

}  // namespace gpuwire::server
