// How large the elements of arrays are, asked of the server once for each array.
#pragma once

#include <cuda.h>

#include <cstddef>
#include <mutex>
#include <optional>
#include <unordered_map>

#include "client_stub/driver/session/session_part.hpp"

namespace gpuwire::client {

// Those of one session. Any thread; one leaf lock.
class ArrayElements final : public SessionPart {
 public:
  explicit ArrayElements(SessionParts& parts) noexcept : SessionPart(parts) {}

  std::optional<size_t> bytes_of(CUarray array) const {
    std::lock_guard lock(mutex_);
    auto found = bytes_.find(array);
    return found == bytes_.end() ? std::nullopt : std::optional(found->second);
  }
  // Handles are not used again for another array.
  void note(CUarray array, size_t bytes) {
    std::lock_guard lock(mutex_);
    if (bytes_.size() >= kKeptMax) bytes_.clear();
    bytes_.emplace(array, bytes);
  }

  void ended(SessionEnd) noexcept override {}      // what is known stays true
  void after_fork_in_child() noexcept override {}  // nobody there asks

 private:
  static constexpr size_t kKeptMax = 4096;  // all are forgotten when there are more

  mutable std::mutex mutex_;
  std::unordered_map<CUarray, size_t> bytes_;
};

}  // namespace gpuwire::client
