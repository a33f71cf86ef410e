#include "client_stub/driver/copy/pending_copies.hpp"

#include <utility>

namespace gpuwire::client {

void PendingCopies::expect(uint64_t sequence, CopyDestination destination) {
  std::lock_guard lock(mutex_);
  copies_[sequence].destination = std::move(destination);
  count_.store(copies_.size(), std::memory_order_relaxed);
}

void PendingCopies::cancel(uint64_t sequence) noexcept {
  std::lock_guard lock(mutex_);
  copies_.erase(sequence);
  count_.store(copies_.size(), std::memory_order_relaxed);
}

BulkSink PendingCopies::sink(uint64_t sequence, uint64_t offset, size_t bytes) {
  std::lock_guard lock(mutex_);
  auto found = copies_.find(sequence);
  if (found == copies_.end()) return {};
  Copy& copy =
      found->second;  // stays where it is until stored(): only the reading thread ends copies while the session lives
  if (offset > copy.destination.bytes || bytes > copy.destination.bytes - offset) return {};
  BulkSink sink;
  sink.bytes = bytes;
  if (copy.destination.scatter) {
    copy.shifted = [&copy, offset](size_t at, std::span<const std::byte> piece) {
      copy.destination.scatter(offset + at, piece);
    };
    sink.scatter = &copy.shifted;
  } else {
    sink.data = static_cast<std::byte*>(copy.destination.data) + offset;
  }
  return sink;
}

void PendingCopies::stored(uint64_t sequence, bool last) noexcept {
  if (!last) return;
  cancel(sequence);
}

bool PendingCopies::touches(const void* data, size_t bytes) const noexcept {
  if (count_.load(std::memory_order_relaxed) == 0) return false;
  auto begin = reinterpret_cast<uintptr_t>(data);
  std::lock_guard lock(mutex_);
  for (const auto& [sequence, copy] : copies_) {
    auto to = reinterpret_cast<uintptr_t>(copy.destination.data);
    if (copy.destination.scatter || (begin < to + copy.destination.bytes && to < begin + bytes)) return true;
  }
  return false;
}

void PendingCopies::ended(SessionEnd how) noexcept {
  if (how != SessionEnd::lost) return;
  std::lock_guard lock(mutex_);
  copies_.clear();
  count_.store(0, std::memory_order_relaxed);
}

}  // namespace gpuwire::client
