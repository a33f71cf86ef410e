#include "client_stub/driver/memory/address_map.hpp"

#include <sys/mman.h>

#include <iterator>
#include <utility>
#include <vector>

#ifndef MAP_FIXED_NOREPLACE
#define MAP_FIXED_NOREPLACE 0x100000  // Linux 4.17; older kernels take it as a hint, which claim_pages() notices
#endif

namespace gpuwire::client {
namespace {

constexpr uint64_t kPageBytes = 4096;
constexpr uint64_t page_floor(uint64_t address) { return address & ~(kPageBytes - 1); }
constexpr uint64_t page_ceiling(uint64_t address) { return page_floor(address + kPageBytes - 1); }

bool claim_pages(uint64_t begin, uint64_t end) {
  void* wanted = reinterpret_cast<void*>(begin);
  void* got =
      mmap(wanted, end - begin, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE | MAP_FIXED_NOREPLACE, -1, 0);
  if (got == wanted) return true;
  if (got != MAP_FAILED) munmap(got, end - begin);
  return false;
}

void give_back_pages(uint64_t begin, uint64_t end) { munmap(reinterpret_cast<void*>(begin), end - begin); }

}  // namespace

// --- AddressMap ----------------------------------------------------------------------------------------------------

std::map<uint64_t, AddressRange>::iterator AddressMap::first_overlap(uint64_t base) {
  auto at = ranges_.upper_bound(base);
  if (at != ranges_.begin() && std::prev(at)->second.end() > base) --at;
  return at;
}

std::vector<AddressRange> AddressMap::insert(AddressRange range) {
  std::vector<AddressRange> dropped;
  if (range.bytes == 0) return dropped;
  std::unique_lock lock(mutex_);
  auto at = first_overlap(range.base);
  while (at != ranges_.end() && at->second.base < range.end()) {
    dropped.push_back(at->second);
    at = ranges_.erase(at);
  }
  range.buffer_id = ++last_buffer_id_;
  ranges_.emplace_hint(at, range.base, range);
  return dropped;
}

bool AddressMap::insert_if_free(AddressRange range) {
  if (range.bytes == 0) return false;
  std::unique_lock lock(mutex_);
  auto at = first_overlap(range.base);
  if (at != ranges_.end() && at->second.base < range.end()) return false;
  range.buffer_id = ++last_buffer_id_;
  ranges_.emplace_hint(at, range.base, range);
  return true;
}

const AddressRange* AddressMap::holder(uint64_t address) const noexcept {
  auto at = ranges_.upper_bound(address);
  if (at == ranges_.begin()) return nullptr;
  const AddressRange& range = std::prev(at)->second;
  return address < range.end() ? &range : nullptr;
}

std::optional<AddressRange> AddressMap::find(uint64_t address) const {
  std::shared_lock lock(mutex_);
  const AddressRange* range = holder(address);
  return range ? std::optional(*range) : std::nullopt;
}

bool AddressMap::find(uint64_t address, AddressRange& out) const noexcept {
  std::shared_lock lock(mutex_);
  const AddressRange* range = holder(address);
  if (range) out = *range;
  return range != nullptr;
}

std::pair<bool, bool> AddressMap::find_both(uint64_t first, AddressRange& first_out, uint64_t second,
                                            AddressRange& second_out) const noexcept {
  std::shared_lock lock(mutex_);
  const AddressRange* one = holder(first);
  if (one) first_out = *one;
  const AddressRange* other = holder(second);
  if (other) second_out = *other;
  return {one != nullptr, other != nullptr};
}

std::optional<AddressRange> AddressMap::take(uint64_t base, const std::function<bool(const AddressRange&)>& accept) {
  std::unique_lock lock(mutex_);
  auto at = ranges_.find(base);
  if (at == ranges_.end() || !accept(at->second)) return std::nullopt;
  AddressRange range = at->second;
  ranges_.erase(at);
  return range;
}

bool AddressMap::update(uint64_t address, const std::function<void(AddressRange&)>& change) {
  std::unique_lock lock(mutex_);
  auto at = ranges_.upper_bound(address);
  if (at == ranges_.begin() || address >= (--at)->second.end()) return false;
  change(at->second);
  return true;
}

void AddressMap::take_all(const std::function<bool(const AddressRange&)>& accept,
                          const std::function<void(const AddressRange&)>& removed) {
  std::vector<AddressRange> taken;
  {
    std::unique_lock lock(mutex_);
    for (auto at = ranges_.begin(); at != ranges_.end();) {
      if (!accept(at->second)) {
        ++at;
        continue;
      }
      taken.push_back(at->second);
      at = ranges_.erase(at);
    }
  }
  for (const AddressRange& range : taken) removed(range);
}

size_t AddressMap::size() const {
  std::shared_lock lock(mutex_);
  return ranges_.size();
}

// --- AddressReservations -------------------------------------------------------------------------------------------

AddressReservations::~AddressReservations() {
  for (auto& [begin, segment] : segments_) give_back_pages(begin, segment.end);
}

// Cuts the segment that holds `address` in two, so that one of them begins there.
void AddressReservations::split(uint64_t address) {
  auto at = segments_.upper_bound(address);
  if (at == segments_.begin()) return;
  --at;
  if (at->first == address || at->second.end <= address) return;
  Segment upper = at->second;
  at->second.end = address;
  segments_.emplace_hint(std::next(at), address, upper);
}

bool AddressReservations::reserve(uint64_t base, uint64_t bytes) {
  if (bytes == 0) return true;
  if (base + bytes < base || base + bytes > UINT64_MAX - kPageBytes) return false;
  uint64_t begin = page_floor(base), end = page_ceiling(base + bytes);
  std::lock_guard lock(mutex_);
  split(begin);
  split(end);
  std::vector<std::pair<uint64_t, uint64_t>> claimed;
  uint64_t cursor = begin;
  auto at = segments_.lower_bound(begin);
  while (cursor < end) {
    uint64_t gap_end = at == segments_.end() || at->first > end ? end : at->first;
    if (gap_end > cursor) {
      if (!claim_pages(cursor, gap_end)) {
        for (auto [from, to] : claimed) give_back_pages(from, to);
        return false;
      }
      claimed.emplace_back(cursor, gap_end);
    }
    if (gap_end == end) break;
    cursor = at->second.end;
    ++at;
  }
  for (auto used = segments_.lower_bound(begin); used != segments_.end() && used->first < end; ++used)
    ++used->second.uses;
  for (auto [from, to] : claimed) segments_.emplace(from, Segment{to, 1});
  return true;
}

void AddressReservations::release(uint64_t base, uint64_t bytes) {
  if (bytes == 0) return;
  uint64_t begin = page_floor(base), end = page_ceiling(base + bytes);
  std::lock_guard lock(mutex_);
  split(begin);
  split(end);
  for (auto at = segments_.lower_bound(begin); at != segments_.end() && at->first < end;) {
    if (--at->second.uses != 0) {
      ++at;
      continue;
    }
    give_back_pages(at->first, at->second.end);
    at = segments_.erase(at);
  }
}

uint64_t AddressReservations::reserved_bytes() const {
  std::lock_guard lock(mutex_);
  uint64_t sum = 0;
  for (auto& [begin, segment] : segments_) sum += segment.end - begin;
  return sum;
}

AddressMap& address_map() {
  static auto* map = new AddressMap;
  return *map;
}

AddressReservations& address_reservations() {
  static auto* reservations = new AddressReservations;
  return *reservations;
}

void publish_range(const AddressRange& range) {
  for (const AddressRange& stale : address_map().insert(range)) release_range(stale);
}

void release_range(const AddressRange& range) {
  if (range.reserved) address_reservations().release(range.base, range.bytes);
}

}  // namespace gpuwire::client
