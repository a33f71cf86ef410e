#include "client_stub/driver/state/host_memory/host_regions.hpp"

#include <fcntl.h>
#include <sys/mman.h>
#include <unistd.h>

#include <algorithm>
#include <new>
#include <utility>

#include "client/forward.hpp"
#include "client/session_sends.hpp"
#include "client_stub/driver/process/log_stderr.hpp"
#include "client_stub/driver/state/context/context.hpp"
#include "client_stub/driver/state/copy/copy_rules.hpp"
#include "client_stub/driver/state/host_memory/memory_rights.hpp"
#include "client_stub/driver/state/host_memory/region_changes.hpp"
#include "client_stub/driver/state/memory/address_map.hpp"
#include "client_stub/driver/state/session/server_session.hpp"
#include "client_stub/driver/state/stream/host_callbacks.hpp"
#include "client_stub/driver/state/copy/pending_copies.hpp"
#include "client_stub/driver/state/copy/shared_staging.hpp"
#include "client_stub/driver/state/graph/graph_memory.hpp"
#include "client_stub/driver/state/host_memory/pinned_pointers.hpp"
#include "client_stub/driver/state/copy/memory_in_flight.hpp"
#include "client_stub/session/file_limit.hpp"
#include "client_stub/session/road.hpp"
#include "protocol/wire/byte_changes.hpp"
#include "schema/session.capnp.h"

#ifndef MAP_FIXED_NOREPLACE
#define MAP_FIXED_NOREPLACE 0x100000  // Linux 4.17; older kernels take it as a hint, which is good enough here
#endif

namespace gpuwire::client {
namespace {

// Pinned memory lies between the addresses of position-independent programs on Linux (from 0x5555'5555'4000 up) and the
// driver's own reservation. PinnedPointers scans data for its addresses, so two adjacent small numbers must not look
// like one. An unused page between two allocations keeps the end of one from being an address of the next.
constexpr uint64_t kGapBytes = 4096;
constexpr uint64_t kWindowBegin = 0x5291'8000'0000;
constexpr uint64_t kWindowEnd = 0x5500'0000'0000;
constexpr uint64_t kSmallNumbersEnd = 1u << 24;  // of the lower half of an address
constexpr unsigned kHintsMax = 16;

// A change up to this size may be a signal to a running kernel; larger changes are sent first.
constexpr size_t kSignalBytesMax = 64;

// Waits for earlier copies into this memory, because later work must find their bytes. Waits for no other work: a
// kernel may wait for the program. Returns false if no wait is possible.
bool await_arrivals(const Caller& caller, uint64_t base, uint64_t bytes) {
  while (caller.server->pending_copies.touches(reinterpret_cast<const void*>(base), bytes)) {
    if (await_verdict(caller)) return false;  // otherwise the data that have arrived meanwhile are in place
  }
  // A synchronisation would end a capture.
  if (!caller.state || caller.state->captures.load(std::memory_order_relaxed) != 0) return true;
  if (caller.server->in_flight.being_written(base, bytes)) static_cast<void>(synchronise_context(caller));
  return true;
}

}  // namespace

HostRegions::HostRegions(ServerSession& session, SessionParts& parts, PinnedPointers& pinned) noexcept
    : SessionPart(parts), session_(session), pinned_(pinned) {}

bool is_mapped(uint64_t address, uint64_t bytes) noexcept {
  constexpr uint64_t kPageBytes = 4096;
  uint64_t begin = address & ~(kPageBytes - 1);
  // With this flag msync(2) only checks the mappings.
  return msync(reinterpret_cast<void*>(begin), address + bytes - begin, MS_ASYNC) == 0;
}

void* map_pinned(size_t mapped_bytes, int file) noexcept {
  const int flags = file < 0 ? MAP_PRIVATE | MAP_ANONYMOUS : MAP_SHARED;
  // A counter alone: nothing is published through it. Addresses are not reused soon, so that the server has time to
  // release them.
  static std::atomic<uint64_t> next{kWindowBegin};
  for (unsigned i = 0; i < kHintsMax && mapped_bytes < kWindowEnd - kWindowBegin; ++i) {
    uint64_t hint = next.fetch_add(mapped_bytes + kGapBytes, std::memory_order_relaxed);
    if (hint > kWindowEnd - mapped_bytes) {
      next.store(kWindowBegin, std::memory_order_relaxed);
      continue;
    }
    if (uint32_t(hint) < kSmallNumbersEnd) {
      next.fetch_add(kSmallNumbersEnd, std::memory_order_relaxed);
      continue;
    }
    void* got =
        mmap(reinterpret_cast<void*>(hint), mapped_bytes, PROT_READ | PROT_WRITE, flags | MAP_FIXED_NOREPLACE, file, 0);
    if (got != MAP_FAILED) return got;
  }
  void* anywhere = mmap(nullptr, mapped_bytes, PROT_READ | PROT_WRITE, flags, file, 0);
  return anywhere == MAP_FAILED ? nullptr : anywhere;
}

CUresult reach_pinned(const AddressRange& pinned) noexcept {
  Caller caller = enter(Needs::context);
  if (caller.error) return caller.error;
  HostRegions& regions = pinned.server->host_regions;
  if (CUresult error = regions.mirror(caller, pinned.base, pinned.bytes)) return error;
  regions.push(caller);
  return CUDA_SUCCESS;
}

bool HostRegions::knows(uint64_t base, Users users) const noexcept {
  MutexLock lock(mutex_);
  return regions_.contains(base) || (users == Users::graphs && for_graphs_.contains(base));
}

CUresult HostRegions::mirror(const Caller& caller, uint64_t base, uint64_t bytes) noexcept try {
  for (;;) {
    if (knows(base, Users::kernels)) return CUDA_SUCCESS;
    const bool arrived = await_arrivals(caller, base, bytes);
    MutexLock making(making_);
    if (knows(base, Users::kernels)) return CUDA_SUCCESS;
    if (!pinned_.contains(base)) return CUDA_ERROR_INVALID_VALUE;
    // Another thread may have sent a copy there meanwhile.
    if (arrived && caller.server->pending_copies.touches(reinterpret_cast<const void*>(base), bytes)) continue;
    return open_to_kernels(caller, base) ? CUDA_SUCCESS : make(caller, base, bytes, Users::kernels);
  }
} catch (const std::bad_alloc&) {
  return CUDA_ERROR_OUT_OF_MEMORY;
}

// The launch that follows the arrival of pending bytes sends them to the server.
CUresult HostRegions::mirror_for_graphs(const Caller& caller, uint64_t base, uint64_t bytes) noexcept try {
  if (!caller.session->facts().knows(uint32_t(wire::SessionOrdinal::region_for_kernels)))
    return CUDA_ERROR_NOT_SUPPORTED;
  if (knows(base, Users::graphs)) return CUDA_SUCCESS;
  MutexLock making(making_);
  if (knows(base, Users::graphs)) return CUDA_SUCCESS;
  return pinned_.contains(base) ? make(caller, base, bytes, Users::graphs) : CUDA_ERROR_INVALID_VALUE;
} catch (const std::bad_alloc&) {
  return CUDA_ERROR_OUT_OF_MEMORY;
}

CUresult HostRegions::make(const Caller& caller, uint64_t base, uint64_t bytes, Users users) {
  if (!caller.session->facts().knows(uint32_t(wire::SessionOrdinal::region_create))) return CUDA_ERROR_NOT_SUPPORTED;
  auto range = address_map().find(base);
  Region region{.bytes = bytes, .shadow = std::vector<std::byte>(bytes)};
  region.registered = range && range->kind == RangeKind::host_registered;
  region.read_only = region.registered && (range->host_flags & CU_MEMHOSTREGISTER_READ_ONLY);
  auto create = [&] {
    const wire::message::RegionCreate what{.address = base, .bytes = bytes};
    return users == Users::kernels ? send::call_region_create(*caller.session, caller.context, what)
                                   : send::call_region_for_graphs(*caller.session, caller.context, what);
  };
  CUresult result = create();
  if (result == CUDA_ERROR_OUT_OF_MEMORY && session_.shared_staging.make_room(caller)) result = create();
  if (result) return result;
  {
    MutexLock lock(mutex_);
    if (users == Users::kernels) add(base, std::move(region));
    else for_graphs_.emplace(base, std::move(region));
  }
  // The removal comes last: until then another thread with a pointer to the memory also calls mirror(), and waits. A
  // region for graphs stays among the pinned pointers, because a kernel may get a pointer to it later.
  if (users == Users::kernels) pinned_.remove(base);
  return CUDA_SUCCESS;
}

bool HostRegions::open_to_kernels(const Caller& caller, uint64_t base) {
  {
    MutexLock lock(mutex_);
    if (!for_graphs_.contains(base)) return false;
  }
  // If the frame cannot be sent, the session is over, and the region with it.
  static_cast<void>(send::post_region_for_kernels(*caller.session, caller.context, {.address = base}));
  {
    MutexLock lock(mutex_);
    if (auto found = for_graphs_.find(base); found != for_graphs_.end()) {
      Region region = std::move(found->second);
      for_graphs_.erase(found);
      add(base, std::move(region));
    }
  }
  pinned_.remove(base);
  return true;
}

namespace {

// Returns a memfd of this size that no process can resize, or -1.
int make_shared_file(size_t bytes) noexcept {
  if (!may_grow_to(bytes)) return -1;
  int file = memfd_create("gpuwire-pinned", MFD_CLOEXEC | MFD_ALLOW_SEALING);
  if (file < 0) return -1;
  if (ftruncate(file, off_t(bytes)) == 0 && fcntl(file, F_ADD_SEALS, F_SEAL_SHRINK | F_SEAL_GROW | F_SEAL_SEAL) == 0)
    return file;
  close(file);
  return -1;
}

}  // namespace

bool can_share_pages(const Caller& caller) noexcept {
  // In a host function the server may only answer after the function has returned.
  if (in_host_callback() || !caller.session->facts().knows(uint32_t(wire::SessionOrdinal::region_share))) return false;
  const Road* road = road_of(*caller.session);
  return road && std::string_view(road->road_name()) == "shm";
}

CUresult share_pages(const Caller& caller, size_t mapped_bytes, void*& memory) noexcept {
  // A lost connection loses the descriptors in flight, and so may the next one.
  constexpr unsigned kTriesMax = 4;
  // A counter alone: nothing is published through it.
  static std::atomic<uint64_t> number{0};
  memory = nullptr;
  if (!can_share_pages(caller)) return CUDA_ERROR_NOT_SUPPORTED;
  Road* road = road_of(*caller.session);
  int file = make_shared_file(mapped_bytes);
  if (file < 0) return CUDA_ERROR_NOT_SUPPORTED;
  memory = map_pinned(mapped_bytes, file);
  // With large pages, pinning the memory is many times faster.
  if (memory) madvise(memory, mapped_bytes, MADV_HUGEPAGE);
  const uint64_t given = number.fetch_add(1, std::memory_order_relaxed) + 1;
  CUresult result = memory ? CUDA_ERROR_NOT_FOUND : CUDA_ERROR_OUT_OF_MEMORY;
  for (unsigned tries = 0; tries < kTriesMax && result == CUDA_ERROR_NOT_FOUND; ++tries) {
    if (!road->give_descriptor(given, file)) break;
    result = send::call_region_share(
        *caller.session, caller.context,
        {.address = reinterpret_cast<uint64_t>(memory), .bytes = mapped_bytes, .descriptor = given});
  }
  close(file);
  if (result != CUDA_SUCCESS && memory) {
    munmap(memory, mapped_bytes);
    memory = nullptr;
  }
  return result;
}

void unshare_pages(const Caller& caller, void* memory, size_t mapped_bytes) noexcept {
  // If the frame cannot be sent, the session is over, and the server's mapping with it.
  static_cast<void>(
      send::post_region_destroy(*caller.session, caller.context, {.address = reinterpret_cast<uint64_t>(memory)}));
  munmap(memory, mapped_bytes);
}

void* HostRegions::allocate_shared(const Caller& caller, size_t mapped_bytes) noexcept try {
  void* memory = nullptr;
  if (share_pages(caller, mapped_bytes, memory) == CUDA_ERROR_OUT_OF_MEMORY &&
      session_.shared_staging.make_room(caller))
    static_cast<void>(share_pages(caller, mapped_bytes, memory));
  if (!memory) return nullptr;
  MutexLock lock(mutex_);
  add(reinterpret_cast<uint64_t>(memory), Region{.bytes = mapped_bytes});
  if (mapped_bytes <= kSharedTableBytesMax) pinned_.add_table(reinterpret_cast<uint64_t>(memory), mapped_bytes);
  return memory;
} catch (const std::bad_alloc&) {
  return nullptr;  // the session's end removes the server's mapping
}

void HostRegions::add(uint64_t base, Region region) {
  bool mirrored = !region.shared();
  if (!regions_.emplace(base, std::move(region)).second) return;
  note_bounds();
  if (mirrored) mirrored_.store(mirrored_.load(std::memory_order_relaxed) + 1, std::memory_order_relaxed);
}

void HostRegions::remove(Regions::iterator which) noexcept {
  if (!which->second.shared())
    mirrored_.store(mirrored_.load(std::memory_order_relaxed) - 1, std::memory_order_relaxed);
  regions_.erase(which);
  note_bounds();
}

void HostRegions::note_bounds() noexcept {
  count_.store(regions_.size(), std::memory_order_relaxed);
  low_.store(regions_.empty() ? 0 : regions_.begin()->first, std::memory_order_relaxed);
  high_.store(regions_.empty() ? 0 : regions_.rbegin()->first + regions_.rbegin()->second.bytes,
              std::memory_order_relaxed);
}

// The device keeps the pages of registered memory in both cases: after a program has unmapped the memory, which is an
// error without a native effect, and while it has revoked access, which is permitted.
void HostRegions::find_changes(uint64_t base, Region& region, uint64_t offset, uint64_t bytes,
                               std::vector<MirroredChange>& changes) {
  const auto* memory = reinterpret_cast<const std::byte*>(base + offset);
  std::vector<std::byte> read;
  if (region.registered) {
    if (!bring_late(base, region)) return;
    if (!is_usable(base + offset, bytes, Use::reading)) {
      read.resize(bytes);
      if (!read_without_rights(base + offset, read)) return;
      memory = read.data();
    }
  }
  wire::take_changes(memory, std::span(region.shadow).subspan(offset, bytes), [&](wire::ByteChanges& found) {
    pinned_.scan_around(region.shadow, base, offset + found.offset, found.bytes.size());
    changes.push_back({base, offset, std::move(found)});
  });
}

HostRegions::Regions::value_type* HostRegions::find(Regions& regions, uint64_t address) noexcept {
  auto at = regions.upper_bound(address);
  if (at == regions.begin()) return nullptr;
  --at;
  return address - at->first < at->second.bytes ? &*at : nullptr;
}

bool HostRegions::bring_late(uint64_t base, Region& region) noexcept {
  if (region.late.empty()) return true;
  if (!is_usable(base, region.bytes, Use::writing)) return false;
  wire::write_changed(reinterpret_cast<std::byte*>(base), region.shadow, region.late);
  region.late.clear();
  return true;
}

void HostRegions::store_without_rights(uint64_t base, Region& region, uint64_t offset, std::span<const std::byte> bytes,
                                       std::span<const uint8_t> mask) {
  if (!is_mapped(base + offset, bytes.size())) return;  // later mappings there are other memory
  std::vector<uint8_t> missing(mask.begin(), mask.end());
  if (mask.empty()) missing.assign(wire::change_mask_bytes(bytes.size()), 0xff);
  // Late bytes are older, so they are written first.
  if (region.late.empty() && write_without_rights(base + offset, bytes, missing)) return;
  region.late.resize(wire::change_mask_bytes(region.bytes));
  for (size_t i = 0; i < bytes.size(); ++i) {
    if (missing[i / 8] >> (i % 8) & 1) region.late[(offset + i) / 8] |= uint8_t(1 << (offset + i) % 8);
  }
}

bool HostRegions::holds(uint64_t address, uint64_t bytes) const noexcept {
  if (!any()) return false;
  MutexLock lock(mutex_);
  auto at = regions_.upper_bound(address);
  if (at == regions_.begin()) return false;
  --at;
  uint64_t offset = address - at->first, size = at->second.bytes;
  return offset < size && bytes <= size - offset;
}

void HostRegions::end(const Caller& caller, uint64_t base) noexcept {
  {
    MutexLock making(making_);
    pinned_.remove(base);
  }
  MutexLock sending(sending_);
  {
    MutexLock lock(mutex_);
    auto found = regions_.find(base);
    if (found != regions_.end()) {
      pinned_.note_former(base, found->second.bytes);
      pinned_.remove_table(base);
      remove(found);
    } else if (for_graphs_.erase(base) == 0) {
      return;
    }
  }
  // If the frame cannot be sent, the session is over, and the region with it.
  static_cast<void>(send::post_region_destroy(*caller.session, caller.context, {.address = base}));
}

void HostRegions::push_now(const Caller& caller) noexcept {
  push_changes(caller);
  // The server may only answer after a host function has returned. The next call of another thread makes the regions
  // that a host function's thread has found.
  if (!caller.state || in_host_callback()) return;
  while (auto wanted = pinned_.next_wanted()) {
    if (mirror(caller, wanted->base, wanted->bytes) == CUDA_SUCCESS) {
      push_changes(caller);  // which may point to more
      continue;
    }
    pinned_.refuse(wanted->base);
    log_stderr(
        "a kernel was given a pointer to pinned memory that it cannot reach: the server cannot map it at the same "
        "addresses");
  }
}

// A table that the device has may point to another table.
void HostRegions::scan_tables() {
  if (!pinned_.any_unseen() || pinned_.want_all_if_tables_cost_more()) return;
  for (size_t seen = 0;;) {
    const auto tables = pinned_.sent_tables(seen);
    if (tables.empty()) return;
    seen += tables.size();
    for (const PinnedPointers::Range& table : tables)
      pinned_.scan_data({reinterpret_cast<const std::byte*>(table.base), table.bytes});
  }
}

void HostRegions::push_changes(const Caller& caller) noexcept try {
  std::vector<MirroredChange> changes;
  MutexLock sending(sending_);
  scan_tables();
  {
    // Not held while frames are sent: a full send window drains through the receiving thread, which takes this lock to
    // store the device's writes.
    MutexLock lock(mutex_);
    if (mirrored_.load(std::memory_order_relaxed) == 0) return;
    for (auto& [base, region] : regions_) {
      if (!region.shared()) find_changes(base, region, 0, region.bytes, changes);
    }
  }
  // The order of the program's writes is unknown. Large changes come first, so a kernel that waits for a word finds the
  // data that the program wrote before the word.
  std::stable_partition(changes.begin(), changes.end(),
                        [](const MirroredChange& change) { return change.bytes.bytes.size() > kSignalBytesMax; });
  post(caller, changes);
} catch (const std::bad_alloc&) {
  // The work of the following call is sent without the changes. The shadow still has the server's content, so the next
  // call sends them.
}

void HostRegions::push_for_graphs(const Caller& caller, std::span<const uint64_t> ranges) noexcept try {
  if (ranges.empty()) return;
  std::vector<MirroredChange> changes;
  MutexLock sending(sending_);
  {
    MutexLock lock(mutex_);
    for (size_t i = 0; i + 1 < ranges.size(); i += 2) {
      auto* found = find(for_graphs_, ranges[i]);
      if (!found) continue;  // now a region for kernels, which was sent with all of those; or freed
      auto& [base, region] = *found;
      const uint64_t offset = ranges[i] - base;
      find_changes(base, region, offset, std::min(ranges[i + 1], region.bytes - offset), changes);
    }
  }
  post(caller, changes);
} catch (const std::bad_alloc&) {
  // As above.
}

void HostRegions::restore_for_graphs(const Caller& caller, std::span<const uint64_t> ranges) noexcept try {
  std::vector<uint64_t> missing;
  {
    MutexLock lock(mutex_);
    for (size_t i = 0; i < ranges.size(); i += 2) {
      if (!find(for_graphs_, ranges[i]) && !find(regions_, ranges[i])) missing.push_back(ranges[i]);
    }
  }
  for (uint64_t address : missing) {
    const auto entry = address_map().find(address);
    if (entry && is_host(entry->kind)) static_cast<void>(mirror_for_graphs(caller, entry->base, entry->bytes));
  }
} catch (const std::bad_alloc&) {
  // The server refuses the launch.
}

void HostRegions::post(const Caller& caller, const std::vector<MirroredChange>& changes) {
  post_changes(changes, [&](const wire::message::RegionChange& change, const Bulk& bulk) {
    return send::post_region_write(*caller.session, caller.context, change, bulk);
  });
}

BulkSink HostRegions::sink(size_t bytes) { return mirrored_sink(incoming_, bytes); }

void HostRegions::stored(uint64_t address, uint64_t offset, std::span<const uint8_t> mask, size_t bytes) {
  if (bytes > incoming_.size()) return;
  MutexLock lock(mutex_);
  auto* found = find(regions_, address);
  if (!found) found = find(for_graphs_, address);
  if (!found || found->first != address || found->second.shared()) return;  // freed meanwhile
  Region& region = found->second;
  const std::span<const std::byte> brought = std::span(incoming_).first(bytes);
  auto* memory = reinterpret_cast<std::byte*>(address);
  // The changes are validated before the memory that they name is accessed.
  const bool fits = offset <= region.bytes && bytes <= region.bytes - offset &&
                    (mask.empty() || mask.size() == wire::change_mask_bytes(bytes));
  if (region.read_only) {
    memory = region.shadow.data();  // the program's bytes now differ from the shadow and are sent to the device again
  } else if (fits && bytes != 0 && region.registered &&
             (!bring_late(address, region) || !is_usable(address + offset, bytes, Use::writing))) {
    store_without_rights(address, region, offset, brought, mask);
    memory = region.shadow.data();  // apply_changes() writes only the shadow
  }
  static_cast<void>(wire::apply_changes(memory, region.shadow, offset, brought, mask));
}

void HostRegions::ended(SessionEnd) noexcept {
  MutexLock lock(mutex_);
  regions_.clear();
  for_graphs_.clear();
  note_bounds();
  mirrored_.store(0, std::memory_order_relaxed);
}

}  // namespace gpuwire::client
