#include "server/replay/host_memory/host_regions.hpp"

#include <fcntl.h>
#include <sys/mman.h>
#include <sys/stat.h>

#include <algorithm>
#include <cstring>
#include <iterator>
#include <utility>

#include "server/driver_table.hpp"
#include "server/replay/call/reply.hpp"
#include "server/replay/graph/graph_memory.hpp"
#include "server/replay/session/replay_state.hpp"
#include "server/replay/session/postponed_frees.hpp"
#include "server/session_handlers.hpp"
#include "server/session_notices.hpp"

#ifndef MAP_FIXED_NOREPLACE
// Linux 4.17; older kernels treat the address as a hint, which map_pages() detects
#define MAP_FIXED_NOREPLACE 0x100000
#endif

namespace gpuwire::server {

namespace {

constexpr uint64_t kPageBytes = 4096;
constexpr uint64_t page_floor(uint64_t address) { return address & ~(kPageBytes - 1); }
constexpr uint64_t page_ceiling(uint64_t address) { return page_floor(address + kPageBytes - 1); }
constexpr unsigned kRegisterFlags = CU_MEMHOSTREGISTER_PORTABLE | CU_MEMHOSTREGISTER_DEVICEMAP;

void unmap(uint64_t begin, uint64_t end) { munmap(reinterpret_cast<void*>(begin), end - begin); }

// Maps pages of a file, or anonymous pages if `memory` is -1. Returns false if the addresses are in use or the mapping
// fails.
bool map_pages(uint64_t begin, uint64_t end, int memory) {
  void* wanted = reinterpret_cast<void*>(begin);
  void* got = mmap(wanted, end - begin, PROT_READ | PROT_WRITE,
                   MAP_SHARED | (memory < 0 ? MAP_ANONYMOUS : 0) | MAP_FIXED_NOREPLACE, memory, 0);
  if (got == wanted) return true;
  if (got != MAP_FAILED) munmap(got, end - begin);
  return false;
}

// Returns whether a file of the client has at least this many bytes and cannot shrink while it is mapped here: only a
// memfd can be sealed so.
bool stays_as_large(int memory, uint64_t bytes) {
  constexpr int kSeals = F_SEAL_SHRINK | F_SEAL_GROW;
  int seals = fcntl(memory, F_GET_SEALS);
  struct stat facts {};
  return seals >= 0 && (seals & kSeals) == kSeals && fstat(memory, &facts) == 0 && S_ISREG(facts.st_mode) &&
         uint64_t(facts.st_size) >= bytes;
}

}  // namespace

// Remaining regions are still registered with the driver, so they stay mapped; the process is about to end.
HostRegions::~HostRegions() = default;

CUresult HostRegions::make_pages(uint64_t begin, uint64_t end, int mapped) {
  if (end - begin > wire::kRegionBytesMax - mapped_bytes_) return CUDA_ERROR_OUT_OF_MEMORY;
  if (!map_pages(begin, end, mapped)) return CUDA_ERROR_NOT_SUPPORTED;
  const DriverTable& driver = replay_.driver();
  void* memory = reinterpret_cast<void*>(begin);
  CUresult result = drive(driver.cuMemHostRegister_v2, memory, size_t(end - begin), kRegisterFlags);
  if (result == CUDA_SUCCESS) {
    CUdeviceptr seen = 0;
    result = drive(driver.cuMemHostGetDevicePointer_v2, &seen, memory, 0u);
    if (result == CUDA_SUCCESS && seen != begin) result = CUDA_ERROR_NOT_SUPPORTED;
    if (result != CUDA_SUCCESS) drive(driver.cuMemHostUnregister, memory);
  }
  if (result != CUDA_SUCCESS) {
    unmap(begin, end);
    return result;
  }
  pages_.emplace(begin, Pages{end, 0});
  mapped_bytes_ += end - begin;
  return CUDA_SUCCESS;
}

// Maps the missing parts of [begin, end), and counts one more region for all of its pages.
CUresult HostRegions::add_pages(uint64_t begin, uint64_t end) {
  auto at = pages_.upper_bound(begin);
  if (at != pages_.begin() && std::prev(at)->second.end > begin) --at;
  CUresult result = CUDA_SUCCESS;
  for (uint64_t next = begin; next < end && result == CUDA_SUCCESS;) {
    if (at != pages_.end() && at->first <= next) {
      next = at->second.end;
      ++at;
      continue;
    }
    uint64_t gap_end = at == pages_.end() ? end : std::min(end, at->first);
    result = make_pages(next, gap_end);
    next = gap_end;
  }
  for (auto& [first, pages] : pages_) {
    if (first < end && pages.end > begin) ++pages.regions;
  }
  if (result != CUDA_SUCCESS) drop_pages(begin, end);
  return result;
}

void HostRegions::drop_pages(uint64_t begin, uint64_t end) {
  for (auto at = pages_.begin(); at != pages_.end() && at->first < end;) {
    auto& [first, pages] = *at;
    if (pages.end <= begin || --pages.regions != 0) {
      ++at;
      continue;
    }
    // cuMemHostUnregister waits until the device has no work left; it fails if the context of the registration has
    // ended, and the registration with it.
    drive(replay_.driver().cuMemHostUnregister, reinterpret_cast<void*>(first));
    unmap(first, pages.end);
    mapped_bytes_ -= pages.end - first;
    at = pages_.erase(at);
  }
}

CUresult HostRegions::check_new(uint64_t address, uint64_t bytes) const {
  if (bytes == 0 || address < wire::kRegionAddressMin || address >= wire::kRegionAddressMax ||
      bytes > wire::kRegionAddressMax - address) {
    return CUDA_ERROR_INVALID_VALUE;
  }
  MutexLock lock(mutex_);
  if (regions_.size() >= wire::kRegionsMax || bytes > wire::kRegionBytesMax) return CUDA_ERROR_OUT_OF_MEMORY;
  auto next = regions_.lower_bound(address);
  bool overlaps = (next != regions_.end() && next->first < address + bytes) ||
                  (next != regions_.begin() && std::prev(next)->first + std::prev(next)->second.bytes > address);
  return overlaps ? CUDA_ERROR_NOT_SUPPORTED : CUDA_SUCCESS;
}

CUresult HostRegions::create(uint64_t address, uint64_t bytes, Users users) {
  if (CUresult error = check_new(address, bytes)) return error;
  Region region{.bytes = bytes, .users = users};
  region.charge = HostCharge(replay_.host_memory());
  if (!region.charge.grow(bytes)) return CUDA_ERROR_OUT_OF_MEMORY;
  if (CUresult error = add_pages(page_floor(address), page_ceiling(address + bytes))) return error;
  // The shadow is mapped after the region, because it might otherwise take the region's addresses.
  if (!(region.shadow = ZeroedMemory(bytes))) {
    drop_pages(page_floor(address), page_ceiling(address + bytes));
    return CUDA_ERROR_OUT_OF_MEMORY;
  }
  // Pages that existed before may contain data of another region.
  std::memset(reinterpret_cast<void*>(address), 0, bytes);
  MutexLock lock(mutex_);
  regions_.emplace(address, std::move(region));
  if (users == Users::kernels)
    mirrored_.store(mirrored_.load(std::memory_order_relaxed) + 1, std::memory_order_release);
  return CUDA_SUCCESS;
}

bool HostRegions::open_to_kernels(uint64_t address) {
  MutexLock lock(mutex_);
  auto found = regions_.find(address);
  if (found == regions_.end() || !found->second.shadow) return false;
  if (std::exchange(found->second.users, Users::kernels) == Users::graphs)
    mirrored_.store(mirrored_.load(std::memory_order_relaxed) + 1, std::memory_order_release);
  return true;
}

CUresult HostRegions::create_shared(uint64_t address, uint64_t bytes, const OwnedDescriptor& memory) {
  if (CUresult error = check_new(address, bytes)) return error;
  const uint64_t end = page_ceiling(address + bytes);
  if (address != page_floor(address) || !stays_as_large(memory.get(), end - address)) return CUDA_ERROR_INVALID_VALUE;
  auto next = pages_.upper_bound(address);
  bool overlaps =
      (next != pages_.end() && next->first < end) || (next != pages_.begin() && std::prev(next)->second.end > address);
  if (overlaps) return CUDA_ERROR_NOT_SUPPORTED;
  if (CUresult error = make_pages(address, end, memory.get())) return error;
  pages_.at(address).regions = 1;
  MutexLock lock(mutex_);
  regions_.emplace(address, Region{.bytes = bytes});
  return CUDA_SUCCESS;
}

CUresult HostRegions::destroy(uint64_t address) {
  uint64_t bytes = 0;
  {
    MutexLock lock(mutex_);
    auto found = regions_.find(address);
    if (found == regions_.end()) return CUDA_ERROR_INVALID_VALUE;
    bytes = found->second.bytes;
    if (found->second.shadow && found->second.users == Users::kernels)
      mirrored_.store(mirrored_.load(std::memory_order_relaxed) - 1, std::memory_order_release);
    regions_.erase(found);
  }
  drop_pages(page_floor(address), page_ceiling(address + bytes));
  return CUDA_SUCCESS;
}

bool HostRegions::holds_shared(uint64_t address, uint64_t bytes) const {
  MutexLock lock(mutex_);
  auto at = regions_.upper_bound(address);
  if (at == regions_.begin()) return false;
  const auto& [base, region] = *--at;
  const uint64_t offset = address - base;
  return !region.shadow && offset < region.bytes && bytes <= region.bytes - offset;
}

HostRegions::Regions::iterator HostRegions::find_mirrored(const Range& range) {
  auto at = regions_.upper_bound(range.address);
  if (at == regions_.begin()) return regions_.end();
  const auto& [base, region] = *--at;
  const uint64_t offset = range.address - base;
  const bool inside = offset < region.bytes && range.bytes <= region.bytes - offset;
  return inside && region.shadow ? at : regions_.end();
}

bool HostRegions::launched(const std::vector<Range>& ranges) {
  MutexLock lock(mutex_);
  for (const Range& range : ranges) {
    if (find_mirrored(range) == regions_.end()) return false;
  }
  for (const Range& range : ranges) ++launched_[range];
  launched_count_.store(launched_.size(), std::memory_order_release);
  return true;
}

void HostRegions::ended(const std::vector<Range>& ranges) {
  MutexLock lock(mutex_);
  for (const Range& range : ranges) {
    if (auto found = launched_.find(range); found != launched_.end() && --found->second == 0) launched_.erase(found);
  }
  launched_count_.store(launched_.size(), std::memory_order_release);
}

bool HostRegions::write(uint64_t address, uint64_t offset, std::span<const std::byte> bytes,
                        std::span<const uint8_t> mask) {
  MutexLock lock(mutex_);
  auto found = regions_.find(address);
  return found != regions_.end() && found->second.shadow &&
         wire::apply_changes(reinterpret_cast<std::byte*>(address), found->second.shadow.bytes(), offset, bytes, mask);
}

bool HostRegions::take_next(Place& place, Place& of, std::vector<wire::ByteChanges>& changes) {
  MutexLock lock(mutex_);
  auto at = regions_.lower_bound(place.address);
  if (at != regions_.end() && at->first != place.address) place.offset = 0;
  while (at != regions_.end() &&
         (!at->second.shadow || at->second.users == Users::graphs || place.offset >= at->second.bytes)) {
    ++at;
    place.offset = 0;
  }
  if (at == regions_.end()) return false;
  of = {at->first, place.offset};
  const uint64_t bytes = std::min<uint64_t>(at->second.bytes - place.offset, wire::kRegionPieceBytes);
  compare(at, of.offset, bytes, changes);
  place = {at->first, place.offset + bytes};
  return true;
}

bool HostRegions::take_next_launched(Range& range, Place& place, Place& of, std::vector<wire::ByteChanges>& changes) {
  MutexLock lock(mutex_);
  auto at = launched_.lower_bound(range);
  auto region = regions_.end();
  for (; at != launched_.end(); ++at, place.offset = 0) {
    if (at->first != range) place.offset = 0;
    range = at->first;
    if (place.offset >= range.bytes) continue;
    region = find_mirrored(range);
    // A region that is by now open to kernels has been compared as a whole.
    if (region != regions_.end() && region->second.users == Users::graphs) break;
  }
  if (at == launched_.end()) return false;
  const uint64_t bytes = std::min<uint64_t>(range.bytes - place.offset, wire::kRegionPieceBytes);
  of = {region->first, range.address - region->first + place.offset};
  compare(region, of.offset, bytes, changes);
  place.offset += bytes;
  return true;
}

void HostRegions::compare(Regions::iterator region, uint64_t offset, uint64_t bytes,
                          std::vector<wire::ByteChanges>& changes) {
  wire::take_changes(reinterpret_cast<const std::byte*>(region->first + offset),
                     region->second.shadow.bytes().subspan(offset, bytes),
                     [&](wire::ByteChanges& found) { changes.push_back(std::move(found)); });
}

void HostRegions::send(const Place& of, const std::vector<wire::ByteChanges>& changes) {
  for (const wire::ByteChanges& change : changes)
    notify::region_data(replay_.outbox(),
                        {.address = of.address, .offset = of.offset + change.offset, .changed = change.mask},
                        change.bytes);
}

void HostRegions::deliver() {
  replay_.state().graph_memory().deliver();
  if (!any_mirrored() && !any_launched()) return;
  MutexLock delivering(delivering_);
  std::vector<wire::ByteChanges> changes;
  Range range;
  for (Place place, of; take_next_launched(range, place, of, changes); changes.clear()) send(of, changes);
  for (Place place, of; take_next(place, of, changes); changes.clear()) send(of, changes);
}

void HostRegions::clear() {
  MutexLock lock(mutex_);
  for (auto& [first, pages] : pages_) unmap(first, pages.end);
  pages_.clear();
  regions_.clear();
  launched_.clear();
  mapped_bytes_ = 0;
  mirrored_.store(0, std::memory_order_release);
  launched_count_.store(0, std::memory_order_release);
}

namespace {

void create_region(Replay& replay, Call& call, HostRegions::Users users) {
  auto params = call.message.getRoot<schema::RegionCreate>();
  if (!replay.context()) return finish(replay, call, CUDA_ERROR_INVALID_CONTEXT);
  finish(replay, call, replay.state().host_regions().create(params.getAddress(), params.getBytes(), users));
}

}  // namespace

void region_create(Replay& replay, Call& call) { create_region(replay, call, HostRegions::Users::kernels); }
void region_for_graphs(Replay& replay, Call& call) { create_region(replay, call, HostRegions::Users::graphs); }

void region_for_kernels(Replay& replay, Call& call) {
  const uint64_t address = call.message.getRoot<schema::RegionDestroy>().getAddress();
  const bool found = replay.state().host_regions().open_to_kernels(address);
  finish(replay, call, found ? CUDA_SUCCESS : CUDA_ERROR_INVALID_VALUE);
}

void region_share(Replay& replay, Call& call) {
  auto params = call.message.getRoot<schema::RegionShare>();
  // The descriptor is taken in any case, because an untaken one counts against the bound of descriptors in flight.
  HostRegions& regions = replay.state().host_regions();
  OwnedDescriptor memory = regions.take_descriptor(params.getDescriptor());
  if (!replay.context()) return finish(replay, call, CUDA_ERROR_INVALID_CONTEXT);
  // The descriptor may have been lost with a connection: then the client sends it again.
  finish(replay, call,
         memory ? regions.create_shared(params.getAddress(), params.getBytes(), memory) : CUDA_ERROR_NOT_FOUND);
}

// cuMemHostUnregister waits like cuMemFree, and is deferred for the same reason (memory.cpp).
void region_destroy(Replay& replay, Call& call) {
  uint64_t address = call.message.getRoot<schema::RegionDestroy>().getAddress();
  if (postpone(replay, {call.header.context, address, true})) return finish(replay, call, CUDA_SUCCESS);
  finish(replay, call, replay.state().host_regions().destroy(address));
}

void region_write(Replay& replay, Call& call) {
  auto params = call.message.getRoot<schema::RegionChange>();
  uint64_t bytes = call.bulk.remaining();
  auto mask = params.getChanged();
  if (bytes == 0) throw ProtocolFault{"region_write: no bulk"};
  if (mask.size() != 0 && mask.size() != wire::change_mask_bytes(bytes))
    throw ProtocolFault{"region_write: a mask of another length than the bulk"};
  std::vector<std::byte> piece(bytes);
  if (!call.bulk.read(piece)) return;
  bool written =
      replay.state().host_regions().write(params.getAddress(), params.getOffset(), piece, {mask.begin(), mask.size()});
  finish(replay, call, written ? CUDA_SUCCESS : CUDA_ERROR_INVALID_VALUE);
}

}  // namespace gpuwire::server
