#include "client_stub/driver/state/copy/pending_copies.hpp"

#include <utility>

namespace gpuwire::client {

namespace {

uint64_t begin_of(const CopyDestination& destination) { return reinterpret_cast<uint64_t>(destination.data); }
uint64_t length_of(const CopyDestination& destination) {
  return destination.scatter ? destination.around_bytes : destination.bytes;
}

}  // namespace

void PendingCopies::expect(uint64_t sequence, CopyDestination destination) {
  MutexLock lock(mutex_);
  Copy& copy = copies_[sequence];
  try {
    ranges_.add(begin_of(destination), length_of(destination));
  } catch (...) {
    copies_.erase(sequence);
    throw;
  }
  copy.destination = std::move(destination);
  count_.store(copies_.size(), std::memory_order_relaxed);
}

void PendingCopies::cancel(uint64_t sequence) noexcept {
  MutexLock lock(mutex_);
  auto found = copies_.find(sequence);
  if (found == copies_.end()) return;
  ranges_.remove(begin_of(found->second.destination), length_of(found->second.destination));
  copies_.erase(found);
  count_.store(copies_.size(), std::memory_order_relaxed);
}

BulkSink PendingCopies::sink(uint64_t sequence, uint64_t offset, size_t bytes) {
  MutexLock lock(mutex_);
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
  MutexLock lock(mutex_);
  return ranges_.any(reinterpret_cast<uint64_t>(data), bytes);
}

void PendingCopies::ended(SessionEnd how) noexcept {
  if (how != SessionEnd::lost) return;
  MutexLock lock(mutex_);
  copies_.clear();
  ranges_.clear();
  count_.store(0, std::memory_order_relaxed);
}

}  // namespace gpuwire::client
