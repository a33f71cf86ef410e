#include "server/software_device/driver/memory/memory_table.hpp"

namespace gpuwire::software_device {

uint64_t MemoryTable::insert(MemoryRange range) {
  const ExclusiveLock lock(mutex_);
  const auto next = ranges_.lower_bound(range.begin);
  if (next != ranges_.end() && next->second.begin < range.end()) {
    return 0;
  }
  if (next != ranges_.begin() && std::prev(next)->second.end() > range.begin) {
    return 0;
  }
  range.buffer_id = next_buffer_id_++;
  const uint64_t begin = range.begin;
  const uint64_t buffer_id = range.buffer_id;
  ranges_.emplace_hint(next, begin, std::move(range));
  return buffer_id;
}

std::optional<MemoryRange> MemoryTable::find(uint64_t address) const {
  std::optional<MemoryRange> out;
  inspect(address, [&](const MemoryRange& range) { out = range; });
  return out;
}

bool MemoryTable::covers(uint64_t address, uint64_t bytes) const {
  const SharedLock lock(mutex_);
  auto range = ranges_.upper_bound(address);
  const uint64_t end = address + bytes;
  if (range == ranges_.begin() || end < address) {
    return false;
  }
  --range;
  for (uint64_t at = address; range != ranges_.end(); ++range) {
    const MemoryRange& found = range->second;
    if (at < found.begin || at >= found.end() || found.readable_by == 0 || found.kind == MemoryKind::heap) {
      return false;
    }
    if (end <= found.end()) {
      return true;
    }
    at = found.end();
  }
  return false;
}

}  // namespace gpuwire::software_device
