#include "protocol/transport/rdma_memory.hpp"

#include <chrono>
#include <new>

namespace gpuwire::transport {

RdmaMemory::~RdmaMemory() { end(); }

void RdmaMemory::begin(Registrar registrar) {
  std::lock_guard lock(mutex_);
  registrar_ = std::move(registrar);
}

void RdmaMemory::end() noexcept {
  std::unique_lock lock(mutex_);
  Registrar registrar = std::exchange(registrar_, {});
  for (auto& [base, range] : ranges_) {
    if (range.state == State::registered && range.uses == 0) {
      registrar.remove(range.region);
      range.state = State::offered;
    }
    if (range.state == State::refused) range.state = State::offered;
    // What a device may still use keeps its registration, which goes with the process, and its owner is told.
    if (range.state == State::registered) range.leaving = true;
  }
  registered_bytes_ = 0;
  registered_ranges_ = 0;
}

void RdmaMemory::offer(std::byte* base, size_t bytes) noexcept try {
  if (bytes < kOfferedBytesMin) return;
  std::lock_guard lock(mutex_);
  if (ranges_.size() >= kOfferedRangesMax) return;
  auto behind = ranges_.lower_bound(base);
  if (behind != ranges_.end() && behind->first < base + bytes) return;
  if (behind != ranges_.begin()) {
    const Range& before = std::prev(behind)->second;
    if (before.base + before.bytes > base) return;
  }
  ranges_.emplace_hint(behind, base, Range{.base = base, .bytes = bytes});
} catch (const std::bad_alloc&) {
  // It goes through the windows.
}

bool RdmaMemory::forget(const std::byte* base, std::chrono::nanoseconds timeout) noexcept {
  std::unique_lock lock(mutex_);
  auto found = ranges_.find(base);
  if (found == ranges_.end()) return true;
  Range& range = found->second;
  range.leaving = true;
  if (!changed_.wait_for(lock, timeout, [&] { return range.uses == 0 && range.state != State::changing; }))
    return false;
  if (range.state == State::registered) {
    range.state = State::changing;
    lock.unlock();
    registrar_.remove(range.region);
    lock.lock();
    registered_bytes_ -= range.bytes;
    --registered_ranges_;
    // There is room now.
    for (auto& [other, refused] : ranges_)
      if (refused.state == State::refused) refused.state = State::offered;
  }
  ranges_.erase(base);
  return true;
}

RdmaMemory::Ranges::const_iterator RdmaMemory::around(std::span<const std::byte> memory) const noexcept {
  auto behind = ranges_.upper_bound(memory.data());
  if (behind == ranges_.begin()) return ranges_.end();
  auto found = std::prev(behind);
  const Range& range = found->second;
  const size_t offset = size_t(memory.data() - range.base);
  if (range.leaving || offset >= range.bytes || memory.size() > range.bytes - offset) return ranges_.end();
  return found;
}

bool RdmaMemory::offers(std::span<const std::byte> memory) const noexcept {
  std::lock_guard lock(mutex_);
  auto found = around(memory);
  return registrar_.add && found != ranges_.end() && found->second.state != State::refused;
}

RdmaMemory::Use RdmaMemory::use(std::span<const std::byte> memory) noexcept {
  std::unique_lock lock(mutex_);
  auto found = around(memory);
  if (!registrar_.add || found == ranges_.end()) return {};
  Range& range = ranges_.find(found->first)->second;
  ++range.uses;  // so that it stays
  changed_.wait(lock, [&] { return range.state != State::changing; });
  if (range.state == State::offered) {
    const bool room = registered_ranges_ < ranges_max_ && range.bytes <= bytes_max_ - registered_bytes_;
    if (room) {
      range.state = State::changing;
      registered_bytes_ += range.bytes;
      ++registered_ranges_;
      lock.unlock();
      range.region = registrar_.add(range.base, range.bytes);
      lock.lock();
      if (!range.region) {
        registered_bytes_ -= range.bytes;
        --registered_ranges_;
      }
    }
    range.state = room && range.region ? State::registered : State::refused;
    if (range.state == State::registered) ++registrations_;
    else refused_.fetch_add(1, std::memory_order_relaxed);
    changed_.notify_all();
  }
  if (range.state == State::registered) return Use(this, range.base, range.region);
  --range.uses;
  changed_.notify_all();
  return {};
}

void RdmaMemory::used(const std::byte* base) noexcept {
  std::lock_guard lock(mutex_);
  auto found = ranges_.find(base);
  if (found == ranges_.end()) return;
  --found->second.uses;
  changed_.notify_all();
}

RdmaMemory::Figures RdmaMemory::figures() const noexcept {
  std::lock_guard lock(mutex_);
  return {registered_bytes_, registrations_, refused()};
}

}  // namespace gpuwire::transport
