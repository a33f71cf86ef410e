// Streams whose word shows that they have passed a mark, while the driver may still regard them as busy.
#pragma once

#include <cuda.h>

#include <algorithm>
#include <utility>
#include <vector>

#include "server/driver_table.hpp"
#include "server/replay/stream/event_pool.hpp"

namespace gpuwire::server {

// The GPU writes a word before it notifies the driver, so a stream whose word was seen is not idle to cuStreamQuery for
// a moment. The program knows it to be idle, and may ask: a caller for which the driver reports such a stream as busy
// makes the driver catch up, and asks again. One per context; executor only.
class PassedMarks {
 public:
  // More are not remembered: with one more the driver has to catch up with the oldest.
  static constexpr size_t kStreamsMax = 8;

  // `event` was recorded in the stream behind the word that was seen.
  void add(const DriverTable& driver, CUstream stream, PooledEvent event) {
    auto same = std::find_if(marks_.begin(), marks_.end(), [&](const auto& mark) { return mark.first == stream; });
    if (same != marks_.end()) {
      same->second = std::move(event);
      return;
    }
    if (marks_.size() == kStreamsMax) {
      wait_for(driver, marks_.front().second);
      marks_.erase(marks_.begin());
    }
    marks_.emplace_back(stream, std::move(event));
  }
  // When it returns, the driver knows all that the words have shown. Waits for nothing but the record of an event.
  // False: the driver knew already.
  bool catch_up(const DriverTable& driver) {
    for (const auto& [stream, event] : marks_) wait_for(driver, event);
    return !std::exchange(marks_, {}).empty();
  }
  // The context is about to go.
  void clear() { marks_.clear(); }

 private:
  static void wait_for(const DriverTable& driver, const PooledEvent& event) {
    while (driver.cuEventQuery(event.get()) == CUDA_ERROR_NOT_READY) {}
  }

  std::vector<std::pair<CUstream, PooledEvent>> marks_;
};

}  // namespace gpuwire::server
