// Streams whose word shows that they have passed a mark, while the driver may still regard them as busy.
#pragma once

#include <cuda.h>

#include <algorithm>
#include <utility>
#include <vector>

#include "server/driver_table.hpp"
#include "server/replay/completion/event_pool.hpp"

namespace gpuwire::server {

// The GPU writes a word before it notifies the driver, so cuStreamQuery may briefly report a stream as busy after its
// word was seen. The program already knows that the stream is idle, so a caller that gets "busy" calls catch_up() and
// queries again. One per context; executor only.
class PassedMarks {
 public:
  // The bound of remembered streams: one more makes add() wait until the driver knows the oldest.
  static constexpr size_t kStreamsMax = 8;

  // Adds a stream. `event` was recorded in it behind the word that was seen.
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
  // Waits until the driver regards all remembered streams as having passed their marks. The wait is short: each event
  // is recorded directly after a word that was seen. Returns false if there was no such stream.
  bool catch_up(const DriverTable& driver) {
    for (const auto& [stream, event] : marks_) wait_for(driver, event);
    return !std::exchange(marks_, {}).empty();
  }
  // Called before the context ends.
  void clear() { marks_.clear(); }

 private:
  static void wait_for(const DriverTable& driver, const PooledEvent& event) {
    while (driver.cuEventQuery(event.get()) == CUDA_ERROR_NOT_READY) {}
  }

  std::vector<std::pair<CUstream, PooledEvent>> marks_;
};

}  // namespace gpuwire::server
