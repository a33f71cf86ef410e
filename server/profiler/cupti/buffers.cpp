#include "server/profiler/cupti/buffers.hpp"

#include <algorithm>
#include <new>
#include <utility>

#include "server/profiler/limits.hpp"

namespace gpuwire::server::cupti {

namespace {

constexpr std::align_val_t kAlignment{64};  // CUPTI asks for 8

}  // namespace

Buffers& Buffers::of_process() {
  static auto* buffers = new Buffers;
  return *buffers;
}

uint8_t* Buffers::give() noexcept try {
  MutexLock lock(mutex_);
  if (!free_.empty()) {
    uint8_t* data = free_.back();
    free_.pop_back();
    return data;
  }
  if (all_.size() >= kCuptiBuffersMax) return nullptr;
  // Writes under the lock must not fail for lack of memory.
  all_.reserve(kCuptiBuffersMax);
  free_.reserve(kCuptiBuffersMax);
  filled_.reserve(kCuptiBuffersMax);
  auto* data = static_cast<uint8_t*>(::operator new(kCuptiBufferBytes, kAlignment, std::nothrow));
  if (data) all_.push_back(data);
  return data;
} catch (...) {
  return nullptr;
}

void Buffers::take(uint8_t* data, size_t valid_bytes) noexcept {
  MutexLock lock(mutex_);
  if (std::ranges::find(all_, data) == all_.end()) return;  // none of ours
  filled_.push_back({data, std::min(valid_bytes, kCuptiBufferBytes)});
  count_.store(filled_.size(), std::memory_order_relaxed);
}

std::vector<Buffers::Filled> Buffers::filled() {
  std::vector<Filled> out;
  MutexLock lock(mutex_);
  out.assign(filled_.begin(), filled_.end());
  filled_.clear();
  count_.store(0, std::memory_order_relaxed);
  return out;
}

void Buffers::release(const Filled& read) noexcept {
  MutexLock lock(mutex_);
  free_.push_back(read.data);
}

}  // namespace gpuwire::server::cupti
