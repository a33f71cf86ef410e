#include "client_stub/driver/state/memory/address_map.hpp"

#include <sys/mman.h>

#include <algorithm>
#include <atomic>
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

// Reservations around many small allocations cover this unit: the driver cuts such allocations from blocks of this
// size.
constexpr uint64_t kChunkBytes = 2u << 20;
constexpr uint64_t chunk_of(uint64_t address) { return address & ~(kChunkBytes - 1); }

bool claim_pages(uint64_t begin, uint64_t end) {
  void* wanted = reinterpret_cast<void*>(begin);
  void* got =
      mmap(wanted, end - begin, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE | MAP_FIXED_NOREPLACE, -1, 0);
  if (got == wanted) return true;
  if (got != MAP_FAILED) munmap(got, end - begin);
  return false;
}

void give_back_pages(uint64_t begin, uint64_t end) { munmap(reinterpret_cast<void*>(begin), end - begin); }

// A counter alone: nothing is published through it.
constinit std::atomic<uint64_t> g_last_buffer_id{0};
uint64_t next_buffer_id() { return g_last_buffer_id.fetch_add(1, std::memory_order_relaxed) + 1; }

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
  ExclusiveLock lock(mutex_);
  auto at = first_overlap(range.base);
  while (at != ranges_.end() && at->second.base < range.end()) {
    dropped.push_back(at->second);
    at = ranges_.erase(at);
  }
  range.buffer_id = next_buffer_id();
  ranges_.emplace_hint(at, range.base, range);
  return dropped;
}

bool AddressMap::insert_if_free(AddressRange range) {
  if (range.bytes == 0) return false;
  ExclusiveLock lock(mutex_);
  auto at = first_overlap(range.base);
  if (at != ranges_.end() && at->second.base < range.end()) return false;
  range.buffer_id = next_buffer_id();
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
  SharedLock lock(mutex_);
  const AddressRange* range = holder(address);
  return range ? std::optional(*range) : std::nullopt;
}

bool AddressMap::find(uint64_t address, AddressRange& out) const noexcept {
  SharedLock lock(mutex_);
  const AddressRange* range = holder(address);
  if (range) out = *range;
  return range != nullptr;
}

std::pair<bool, bool> AddressMap::find_both(uint64_t first, AddressRange& first_out, uint64_t second,
                                            AddressRange& second_out) const noexcept {
  SharedLock lock(mutex_);
  const AddressRange* one = holder(first);
  if (one) first_out = *one;
  const AddressRange* other = holder(second);
  if (other) second_out = *other;
  return {one != nullptr, other != nullptr};
}

std::optional<AddressRange> AddressMap::take(uint64_t base, const std::function<bool(const AddressRange&)>& accept) {
  ExclusiveLock lock(mutex_);
  auto at = ranges_.find(base);
  if (at == ranges_.end() || !accept(at->second)) return std::nullopt;
  AddressRange range = at->second;
  ranges_.erase(at);
  return range;
}

bool AddressMap::update(uint64_t address, const std::function<void(AddressRange&)>& change) {
  ExclusiveLock lock(mutex_);
  auto at = ranges_.upper_bound(address);
  if (at == ranges_.begin() || address >= (--at)->second.end()) return false;
  change(at->second);
  return true;
}

void AddressMap::update_within(uint64_t base, uint64_t bytes, const std::function<void(AddressRange&)>& change) {
  ExclusiveLock lock(mutex_);
  for (auto at = ranges_.lower_bound(base); at != ranges_.end() && at->first - base < bytes; ++at) {
    if (at->second.bytes <= bytes - (at->first - base)) change(at->second);
  }
}

void AddressMap::take_all(const std::function<bool(const AddressRange&)>& accept,
                          const std::function<void(const AddressRange&)>& removed) {
  std::vector<AddressRange> taken;
  {
    ExclusiveLock lock(mutex_);
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
  SharedLock lock(mutex_);
  return ranges_.size();
}

// --- AddressReservations -------------------------------------------------------------------------------------------

AddressReservations::~AddressReservations() {
  for (auto& [begin, segment] : segments_) give_back_pages(begin, segment.end);
  for (uint64_t chunk : whole_) give_back_pages(chunk, chunk + kChunkBytes);
}

// Cuts the segment that holds `address` in two, so that a segment begins there.
void AddressReservations::split(uint64_t address) {
  auto at = segments_.upper_bound(address);
  if (at == segments_.begin()) return;
  --at;
  if (at->first == address || at->second.end <= address) return;
  Segment upper = at->second;
  at->second.end = address;
  segments_.emplace_hint(std::next(at), address, upper);
}

AddressReservations::Stretches AddressReservations::gaps(uint64_t begin, uint64_t end) {
  Stretches found;
  auto at = segments_.upper_bound(begin);
  uint64_t cursor = begin;
  if (at != segments_.begin()) cursor = std::max(begin, std::prev(at)->second.end);
  for (; cursor < end; ++at) {
    const uint64_t gap_end = at == segments_.end() ? end : std::min(end, at->first);
    if (gap_end > cursor) found.emplace_back(cursor, gap_end);
    if (at == segments_.end() || at->first >= end) break;
    cursor = at->second.end;
  }
  return found;
}

bool AddressReservations::is_used(uint64_t begin, uint64_t end) const {
  auto at = segments_.lower_bound(begin);
  return (at != segments_.end() && at->first < end) || (at != segments_.begin() && std::prev(at)->second.end > begin);
}

bool AddressReservations::hold_whole(uint64_t chunk, Stretches& claimed) {
  const size_t before = claimed.size();
  for (auto [from, to] : gaps(chunk, chunk + kChunkBytes)) {
    if (claim_pages(from, to)) {
      claimed.emplace_back(from, to);
      continue;
    }
    // A mapping of the program is in the way.
    for (; claimed.size() > before; claimed.pop_back()) give_back_pages(claimed.back().first, claimed.back().second);
    return false;
  }
  return true;
}

bool AddressReservations::claim(uint64_t begin, uint64_t end, Stretches& claimed, std::vector<uint64_t>& chunks) {
  for (uint64_t cursor = begin; cursor < end;) {
    const uint64_t chunk = chunk_of(cursor), chunk_end = chunk + kChunkBytes;
    if (whole_.contains(chunk)) {
      cursor = chunk_end;
      continue;
    }
    auto next_whole = whole_.upper_bound(chunk);
    uint64_t stop = next_whole == whole_.end() ? end : std::min(end, *next_whole);
    if (segments_.size() >= single_stretches_max_) {
      const bool part = cursor != chunk || stop < chunk_end;
      stop = part ? std::min(stop, chunk_end) : chunk_of(stop);
      if (part && hold_whole(chunk, claimed)) {
        whole_.insert(chunk);
        chunks.push_back(chunk);
        cursor = stop;
        continue;
      }
    }
    if (!claim_pages(cursor, stop)) return false;
    claimed.emplace_back(cursor, stop);
    cursor = stop;
  }
  return true;
}

bool AddressReservations::reserve(uint64_t base, uint64_t bytes) {
  if (bytes == 0) return true;
  if (base + bytes < base || base + bytes > UINT64_MAX - kChunkBytes) return false;
  uint64_t begin = page_floor(base), end = page_ceiling(base + bytes);
  MutexLock lock(mutex_);
  split(begin);
  split(end);
  const Stretches missing = gaps(begin, end);
  Stretches claimed;
  std::vector<uint64_t> chunks;
  for (auto [from, to] : missing) {
    if (claim(from, to, claimed, chunks)) continue;
    for (auto [first, last] : claimed) give_back_pages(first, last);
    for (uint64_t chunk : chunks) whole_.erase(chunk);
    return false;
  }
  for (auto used = segments_.lower_bound(begin); used != segments_.end() && used->first < end; ++used)
    ++used->second.uses;
  for (auto [from, to] : missing) segments_.emplace(from, Segment{to, 1});
  return true;
}

void AddressReservations::give_back(uint64_t begin, uint64_t end) {
  for (uint64_t cursor = begin; cursor < end;) {
    auto whole = whole_.lower_bound(chunk_of(cursor));
    const uint64_t stop = whole == whole_.end() ? end : std::min(end, std::max(cursor, *whole));
    if (stop > cursor) give_back_pages(cursor, stop);
    if (stop == end) return;
    const uint64_t chunk = *whole;
    cursor = chunk + kChunkBytes;
    if (is_used(chunk, chunk + kChunkBytes)) continue;
    give_back_pages(chunk, chunk + kChunkBytes);
    whole_.erase(whole);
  }
}

void AddressReservations::release(uint64_t base, uint64_t bytes) {
  if (bytes == 0) return;
  uint64_t begin = page_floor(base), end = page_ceiling(base + bytes);
  MutexLock lock(mutex_);
  split(begin);
  split(end);
  for (auto at = segments_.lower_bound(begin); at != segments_.end() && at->first < end;) {
    if (--at->second.uses != 0) {
      ++at;
      continue;
    }
    const uint64_t from = at->first, to = at->second.end;
    at = segments_.erase(at);
    give_back(from, to);
  }
}

void AddressReservations::make_room(uint64_t base, uint64_t bytes) {
  MutexLock lock(mutex_);
  for (auto at = whole_.lower_bound(chunk_of(base)); at != whole_.end() && *at < base + bytes;) {
    for (auto [from, to] : gaps(*at, *at + kChunkBytes)) give_back_pages(from, to);
    at = whole_.erase(at);
  }
}

uint64_t AddressReservations::reserved_bytes() const {
  MutexLock lock(mutex_);
  uint64_t sum = 0;
  for (auto& [begin, segment] : segments_) sum += segment.end - begin;
  return sum;
}

AddressMap& address_map() {
  static auto* map = new AddressMap;
  return *map;
}

AddressMap& mapped_parts() {
  static auto* parts = new AddressMap;
  return *parts;
}

std::optional<AddressRange> allocation_at(uint64_t address) {
  auto range = address_map().find(address);
  return range && range->kind == RangeKind::mapped ? mapped_parts().find(address) : range;
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
