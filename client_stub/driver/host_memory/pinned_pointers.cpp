#include "client_stub/driver/host_memory/pinned_pointers.hpp"

#include <algorithm>
#include <cstring>
#include <iterator>
#include <new>

namespace gpuwire::client {
namespace {

constexpr uint64_t kWordBytes = sizeof(uint64_t);

}  // namespace

void PinnedPointers::note_bounds() noexcept {
  low_.store(ranges_.empty() ? 0 : ranges_.begin()->first, std::memory_order_relaxed);
  high_.store(ranges_.empty() ? 0 : ranges_.rbegin()->first + ranges_.rbegin()->second.bytes,
              std::memory_order_relaxed);
}

void PinnedPointers::set(Entry& entry, State state) noexcept {
  size_t wanted = wanted_.load(std::memory_order_relaxed);
  wanted_.store(wanted - (entry.state == State::wanted) + (state == State::wanted), std::memory_order_relaxed);
  entry.state = state;
}

void PinnedPointers::add(uint64_t base, uint64_t bytes) {
  std::lock_guard lock(mutex_);
  Entry& entry = ranges_[base];
  auto former = former_.lower_bound(base + bytes);
  bool known_before = former != former_.begin() && std::prev(former)->first + std::prev(former)->second > base;
  set(entry, known_before ? State::wanted : State::unseen);
  entry.bytes = bytes;
  note_bounds();
}

void PinnedPointers::note_former(uint64_t base, uint64_t bytes) noexcept try {
  std::lock_guard lock(mutex_);
  if (former_.size() >= kFormerMax) former_.clear();
  uint64_t& known = former_[base];
  known = std::max(known, bytes);
} catch (const std::bad_alloc&) {
  // Then a pointer has to be seen again.
}

void PinnedPointers::remove(uint64_t base) noexcept {
  std::lock_guard lock(mutex_);
  auto found = ranges_.find(base);
  if (found == ranges_.end()) return;
  set(found->second, State::unseen);
  ranges_.erase(found);
  note_bounds();
}

bool PinnedPointers::contains(uint64_t base) const noexcept {
  std::lock_guard lock(mutex_);
  return ranges_.contains(base);
}

std::span<const std::byte> PinnedPointers::whole_words(std::span<const std::byte> memory, uint64_t address,
                                                       uint64_t offset, uint64_t bytes) noexcept {
  // Offsets whose addresses are multiples of a word's size, within the memory.
  const uint64_t first = (kWordBytes - address % kWordBytes) % kWordBytes;
  const uint64_t last = memory.size() < first ? first : first + (memory.size() - first) / kWordBytes * kWordBytes;
  uint64_t begin = offset < first ? first : offset - (offset - first) % kWordBytes;
  uint64_t end = offset + bytes < first
                     ? first
                     : offset + bytes + (kWordBytes - (offset + bytes - first) % kWordBytes) % kWordBytes;
  end = std::min(end, last);
  return begin < end ? memory.subspan(begin, end - begin) : std::span<const std::byte>();
}

void PinnedPointers::look_closely(std::span<const std::byte> data, uint64_t alignment) noexcept {
  for (size_t at = 0; at + kWordBytes <= data.size(); at += kWordBytes) {
    uint64_t word;
    std::memcpy(&word, data.data() + at, sizeof word);
    if (word % alignment == 0) look_at(word);
  }
}

void PinnedPointers::want(uint64_t address) noexcept {
  std::lock_guard lock(mutex_);
  auto at = ranges_.upper_bound(address);
  if (at == ranges_.begin()) return;
  auto& [base, entry] = *std::prev(at);
  if (address - base < entry.bytes && entry.state == State::unseen) set(entry, State::wanted);
}

std::optional<PinnedPointers::Range> PinnedPointers::next_wanted() const noexcept {
  if (!wanted()) return std::nullopt;
  std::lock_guard lock(mutex_);
  for (const auto& [base, entry] : ranges_) {
    if (entry.state == State::wanted) return Range{base, entry.bytes};
  }
  return std::nullopt;
}

void PinnedPointers::refuse(uint64_t base) noexcept {
  std::lock_guard lock(mutex_);
  auto found = ranges_.find(base);
  if (found != ranges_.end()) set(found->second, State::refused);
}

void PinnedPointers::ended(SessionEnd) noexcept {
  std::lock_guard lock(mutex_);
  ranges_.clear();
  former_.clear();
  wanted_.store(0, std::memory_order_relaxed);
  note_bounds();
}

}  // namespace gpuwire::client
