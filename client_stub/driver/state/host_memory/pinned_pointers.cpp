#include "client_stub/driver/state/host_memory/pinned_pointers.hpp"

#include <algorithm>
#include <cstring>
#include <iterator>
#include <new>

#if defined(__x86_64__)
#include <emmintrin.h>
#endif

#include "client_stub/driver/state/memory/address_map.hpp"

namespace gpuwire::client {
namespace {

constexpr uint64_t kWordBytes = sizeof(uint64_t);
constexpr size_t kBlockBytes = 64;

// Returns whether the upper half of any of a block's words is in [first, last], the upper halves of the wanted
// addresses. Almost all data of a program fail this test, so a megabyte takes 20 us instead of 300.
bool may_hold_one(const std::byte* block, uint32_t first, uint32_t last) noexcept {
#if defined(__x86_64__)
  const __m128i sign = _mm_set1_epi32(int(0x8000'0000)), firsts = _mm_set1_epi32(int(first)),
                most = _mm_set1_epi32(int((last - first) ^ 0x8000'0000));
  __m128i outside = _mm_set1_epi32(-1);
  for (size_t at = 0; at < kBlockBytes; at += 2 * sizeof(__m128i)) {
    const __m128i words = _mm_loadu_si128(reinterpret_cast<const __m128i*>(block + at)),
                  more = _mm_loadu_si128(reinterpret_cast<const __m128i*>(block + at + sizeof(__m128i)));
    const __m128i upper =
        _mm_castps_si128(_mm_shuffle_ps(_mm_castsi128_ps(words), _mm_castsi128_ps(more), _MM_SHUFFLE(3, 1, 3, 1)));
    // SSE2 compares signed numbers.
    outside = _mm_and_si128(outside, _mm_cmpgt_epi32(_mm_xor_si128(_mm_sub_epi32(upper, firsts), sign), most));
  }
  return _mm_movemask_epi8(outside) != 0xffff;
#else
  bool inside = false;
  for (size_t at = 0; at < kBlockBytes; at += kWordBytes) {
    uint64_t word;
    std::memcpy(&word, block + at, sizeof word);
    inside |= uint32_t(word >> 32) - first <= last - first;
  }
  return inside;
#endif
}

}  // namespace

void PinnedPointers::note_bounds() noexcept {
  uint64_t low = ~uint64_t{0}, high = 0;
  auto include = [&](const auto& all) {
    if (all.empty()) return;
    low = std::min(low, all.begin()->first);
    high = std::max(high, all.rbegin()->first + all.rbegin()->second.bytes);
  };
  include(ranges_);
  include(tables_);
  low_.store(high == 0 ? 0 : low, std::memory_order_relaxed);
  high_.store(high, std::memory_order_relaxed);
  count_.store(ranges_.size(), std::memory_order_relaxed);
}

void PinnedPointers::add_table(uint64_t base, uint64_t bytes) {
  MutexLock lock(mutex_);
  if (!tables_.emplace(base, Table{bytes, false}).second) return;
  unsent_.store(unsent_.load(std::memory_order_relaxed) + 1, std::memory_order_relaxed);
  note_bounds();
}

void PinnedPointers::remove_table(uint64_t base) noexcept {
  MutexLock lock(mutex_);
  auto found = tables_.find(base);
  if (found == tables_.end()) return;
  if (found->second.told) {
    std::erase_if(notified_, [&](const Range& table) { return table.base == base; });
    told_bytes_ -= found->second.bytes;
  } else {
    unsent_.store(unsent_.load(std::memory_order_relaxed) - 1, std::memory_order_relaxed);
  }
  tables_.erase(found);
  note_bounds();
}

bool PinnedPointers::notify_holder(uint64_t address) noexcept {
  auto at = tables_.upper_bound(address);
  if (at == tables_.begin()) return false;
  auto& [base, table] = *std::prev(at);
  if (address - base > table.bytes) return false;
  if (table.told) return true;
  try {
    notified_.push_back({base, table.bytes});
  } catch (const std::bad_alloc&) {
    return true;  // the next scan searches its targets
  }
  table.told = true;
  told_bytes_ += table.bytes;
  unsent_.store(unsent_.load(std::memory_order_relaxed) - 1, std::memory_order_relaxed);
  return true;
}

std::vector<PinnedPointers::Range> PinnedPointers::sent_tables(size_t from) const {
  MutexLock lock(mutex_);
  if (from >= notified_.size()) return {};
  return {notified_.begin() + ptrdiff_t(from), notified_.end()};
}

bool PinnedPointers::want_all_if_tables_cost_more() noexcept {
  MutexLock lock(mutex_);
  const uint64_t unseen_bytes = unseen_bytes_.load(std::memory_order_relaxed);
  if (told_bytes_ <= kTableBytesCheap || told_bytes_ / kComparedBytesCost <= unseen_bytes) return false;
  for (auto& [base, entry] : ranges_) note_wanted(entry);
  return true;
}

void PinnedPointers::set(Entry& entry, State state) noexcept {
  size_t wanted = wanted_.load(std::memory_order_relaxed);
  wanted_.store(wanted - (entry.state == State::wanted) + (state == State::wanted), std::memory_order_relaxed);
  const uint64_t unseen = unseen_bytes_.load(std::memory_order_relaxed);
  unseen_bytes_.store(
      unseen - (entry.state == State::unseen ? entry.bytes : 0) + (state == State::unseen ? entry.bytes : 0),
      std::memory_order_relaxed);
  entry.state = state;
}

void PinnedPointers::add(uint64_t base, uint64_t bytes, Around around) {
  MutexLock lock(mutex_);
  Entry& entry = ranges_[base];
  auto former = former_.lower_bound(base + bytes);
  bool known_before = former != former_.begin() && std::prev(former)->first + std::prev(former)->second > base;
  set(entry, State::refused);  // in no count, whatever its state was
  entry.bytes = bytes;
  entry.around = around;
  set(entry, known_before ? State::wanted : State::unseen);
  note_bounds();
}

void PinnedPointers::note_former(uint64_t base, uint64_t bytes) noexcept try {
  MutexLock lock(mutex_);
  if (former_.size() >= kFormerMax) former_.clear();
  uint64_t& known = former_[base];
  known = std::max(known, bytes);
} catch (const std::bad_alloc&) {
  // The entry is lost: memory that is pinned there later becomes wanted only when a pointer is seen again.
}

void PinnedPointers::remove(uint64_t base) noexcept {
  MutexLock lock(mutex_);
  auto found = ranges_.find(base);
  if (found == ranges_.end()) return;
  set(found->second, State::refused);
  ranges_.erase(found);
  note_bounds();
}

bool PinnedPointers::contains(uint64_t base) const noexcept {
  MutexLock lock(mutex_);
  return ranges_.contains(base);
}

std::span<const std::byte> PinnedPointers::whole_words(std::span<const std::byte> memory, uint64_t address,
                                                       uint64_t offset, uint64_t bytes) noexcept {
  // The offsets of aligned words in the memory.
  const uint64_t first = (kWordBytes - address % kWordBytes) % kWordBytes;
  const uint64_t last = memory.size() < first ? first : first + (memory.size() - first) / kWordBytes * kWordBytes;
  uint64_t begin = offset < first ? first : offset - (offset - first) % kWordBytes;
  uint64_t end = offset + bytes < first
                     ? first
                     : offset + bytes + (kWordBytes - (offset + bytes - first) % kWordBytes) % kWordBytes;
  end = std::min(end, last);
  return begin < end ? memory.subspan(begin, end - begin) : std::span<const std::byte>();
}

void PinnedPointers::scan_data_words(std::span<const std::byte> data) noexcept {
  const uint64_t low = low_.load(std::memory_order_relaxed), high = high_.load(std::memory_order_relaxed);
  const auto first = uint32_t(low >> 32), last = uint32_t(high >> 32);
  for (size_t at = 0; at + kWordBytes <= data.size();) {
    const size_t end = std::min(at + kBlockBytes, data.size());
    if (end - at == kBlockBytes && !may_hold_one(data.data() + at, first, last)) {
      at = end;
      continue;
    }
    for (; at + kWordBytes <= end; at += kWordBytes) {
      uint64_t word;
      std::memcpy(&word, data.data() + at, sizeof word);
      if (word % kAlignmentInData == 0 && may_hold(word)) want(word);
    }
  }
}

void PinnedPointers::scan_arguments(std::span<const std::byte> arguments) noexcept {
  for (size_t at = 0; at + kWordBytes <= arguments.size(); at += kWordBytes / 2) {
    uint64_t word;
    std::memcpy(&word, arguments.data() + at, sizeof word);
    scan_argument(word);
    scan_argument(word << 32 | word >> 32);
  }
}

void PinnedPointers::join_halves(uint64_t place, uint32_t half) noexcept {
  constexpr uint64_t kHalfBytes = kWordBytes / 2;
  uint64_t word = 0;
  {
    MutexLock lock(mutex_);
    if (place == half_place_ + kHalfBytes) word = uint64_t(half) << 32 | half_;
    if (place + kHalfBytes == half_place_) word = uint64_t(half_) << 32 | half;
    half_place_ = place;
    half_ = half;
  }
  scan_argument(word);
}

bool PinnedPointers::want_holder(uint64_t address) noexcept {
  auto at = ranges_.upper_bound(address);
  if (at == ranges_.begin()) return notify_holder(address);
  auto& [base, entry] = *std::prev(at);
  if (address - base >= entry.bytes) return notify_holder(address);
  note_wanted(entry);
  return true;
}

bool PinnedPointers::want_ended(uint64_t address) noexcept {
  auto at = ranges_.upper_bound(address);
  if (at == ranges_.begin()) return false;
  auto& [base, entry] = *std::prev(at);
  if (address - base != entry.bytes) return false;
  note_wanted(entry);
  return true;
}

void PinnedPointers::want_above(uint64_t address) noexcept {
  auto above = ranges_.upper_bound(address);
  if (above == ranges_.end()) return;
  auto& [base, entry] = *above;
  if (base - address <= (entry.around == Around::pinned_memory ? kBelowBytesMax : kBelowAmongOthersBytesMax))
    note_wanted(entry);
}

namespace {

bool is_of_known_memory(uint64_t address) noexcept {
  AddressRange holder;
  return address_map().find(address, holder);
}

}  // namespace

void PinnedPointers::want(uint64_t address) noexcept {
  {
    MutexLock lock(mutex_);
    if (want_holder(address)) return;
  }
  if (is_of_known_memory(address)) return;
  MutexLock lock(mutex_);
  want_ended(address);
}

void PinnedPointers::want_near(uint64_t address) noexcept {
  {
    MutexLock lock(mutex_);
    if (want_holder(address)) return;
  }
  if (is_of_known_memory(address)) return;
  MutexLock lock(mutex_);
  if (!want_ended(address)) want_above(address);
}

std::optional<PinnedPointers::Range> PinnedPointers::next_wanted() const noexcept {
  if (!wanted()) return std::nullopt;
  MutexLock lock(mutex_);
  for (const auto& [base, entry] : ranges_) {
    if (entry.state == State::wanted) return Range{base, entry.bytes};
  }
  return std::nullopt;
}

void PinnedPointers::refuse(uint64_t base) noexcept {
  MutexLock lock(mutex_);
  auto found = ranges_.find(base);
  if (found != ranges_.end()) set(found->second, State::refused);
}

void PinnedPointers::ended(SessionEnd) noexcept {
  MutexLock lock(mutex_);
  ranges_.clear();
  former_.clear();
  tables_.clear();
  notified_.clear();
  wanted_.store(0, std::memory_order_relaxed);
  unsent_.store(0, std::memory_order_relaxed);
  unseen_bytes_.store(0, std::memory_order_relaxed);
  told_bytes_ = 0;
  note_bounds();
}

}  // namespace gpuwire::client
