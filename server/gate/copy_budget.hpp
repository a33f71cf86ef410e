// Limits the bytes of large copies that a session sends over the host's link.
#pragma once

#include <algorithm>
#include <chrono>
#include <cstdint>

#include "server/gate/limits.hpp"
#include "server/gate/page/session_page.hpp"

namespace gpuwire::server {

// A token bucket that fills at a given rate. One thread.
class CopyBudget {
 public:
  // Takes the bytes, on credit if necessary. Returns the wait before the copy; zero: none.
  std::chrono::nanoseconds take(uint64_t bytes, uint64_t bytes_per_ms, PageTime now) {
    if (bytes_per_ms == 0) {
      filled_ = now;
      left_ = 0;
      return {};
    }
    // Per ns.
    double rate = double(bytes_per_ms) / 1e6;
    left_ = std::min(left_ + double((now - filled_).count()) * rate,
                     rate * double(std::chrono::nanoseconds(kCopyBurst).count()));
    filled_ = now;
    double debt = -left_;
    left_ -= double(bytes);
    return std::chrono::nanoseconds(int64_t(std::max(debt, 0.0) / rate));
  }

 private:
  PageTime filled_{};
  // Bytes.
  double left_ = 0;
};

}  // namespace gpuwire::server
