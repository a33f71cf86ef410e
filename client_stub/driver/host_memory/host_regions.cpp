#include "client_stub/driver/host_memory/host_regions.hpp"

#include <fcntl.h>
#include <sys/mman.h>
#include <unistd.h>

#include <algorithm>
#include <new>
#include <utility>

#include "client/forward.hpp"
#include "client/session_sends.hpp"
#include "client_stub/driver/call/say.hpp"
#include "client_stub/driver/context/context.hpp"
#include "client_stub/driver/copy/copy_rules.hpp"
#include "client_stub/driver/host_memory/region_changes.hpp"
#include "client_stub/driver/memory/address_map.hpp"
#include "client_stub/driver/session/server_session.hpp"
#include "client_stub/driver/stream/host_callbacks.hpp"
#include "client_stub/session/road.hpp"
#include "protocol/wire/byte_changes.hpp"
#include "schema/session.capnp.h"

#ifndef MAP_FIXED_NOREPLACE
#define MAP_FIXED_NOREPLACE 0x100000  // Linux 4.17; older kernels take it as a hint, which is good enough here
#endif

namespace gpuwire::client {
namespace {

// Between where Linux puts position-independent programs (from 0x5555'5555'4000 up) and what the driver reserves for
// itself. Data are looked through for these addresses, so they are none that two small numbers, one beside the other,
// look like.
constexpr uint64_t kWindowBegin = 0x5291'8000'0000;
constexpr uint64_t kWindowEnd = 0x5500'0000'0000;
constexpr uint64_t kSmallNumbersEnd = 1u << 24;  // of the lower half of an address
constexpr unsigned kHintsMax = 16;

// A change that may be a signal to a running kernel: larger ones are sent first.
constexpr size_t kSignalBytesMax = 64;

// Copies that were sent before are still to bring bytes here, and only here: work that is sent from now on is to find
// them. Other work is not waited for: a kernel may stand until the program has gone on.
void await_arrivals(const Caller& caller, uint64_t base, uint64_t bytes) {
  while (caller.server->pending_copies.touches(reinterpret_cast<const void*>(base), bytes)) {
    if (await_verdict(caller)) return;  // the session is over; else what has arrived meanwhile is in place
  }
  // While a stream captures, nothing may be synchronised.
  if (!caller.state || caller.state->captures.load(std::memory_order_relaxed) != 0) return;
  if (caller.server->graph_memory.being_written(base, bytes)) static_cast<void>(forward::cuCtxSynchronize(caller));
}

}  // namespace

HostRegions::HostRegions(ServerSession& session, SessionParts& parts) noexcept
    : SessionPart(parts), session_(session), pinned_(session.pinned_pointers) {}

bool is_mapped(uint64_t address, uint64_t bytes) noexcept {
  constexpr uint64_t kPageBytes = 4096;
  uint64_t begin = address & ~(kPageBytes - 1);
  // Looks at the mappings and, with this flag, does nothing more (msync(2)).
  return msync(reinterpret_cast<void*>(begin), address + bytes - begin, MS_ASYNC) == 0;
}

void* map_pinned(size_t mapped_bytes, int file) noexcept {
  const int flags = file < 0 ? MAP_PRIVATE | MAP_ANONYMOUS : MAP_SHARED;
  // A counter alone: nothing is published through it. Addresses are not given out again soon, so that the server has
  // time to let go of them.
  static std::atomic<uint64_t> next{kWindowBegin};
  for (unsigned i = 0; i < kHintsMax && mapped_bytes < kWindowEnd - kWindowBegin; ++i) {
    uint64_t hint = next.fetch_add(mapped_bytes, std::memory_order_relaxed);
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

CUresult HostRegions::mirror(const Caller& caller, uint64_t base, uint64_t bytes) noexcept try {
  std::lock_guard making(making_);
  {
    std::lock_guard lock(mutex_);
    if (regions_.contains(base)) return CUDA_SUCCESS;
  }
  if (!pinned_.contains(base)) return CUDA_ERROR_INVALID_VALUE;
  await_arrivals(caller, base, bytes);
  if (!caller.session->facts().knows(uint32_t(wire::SessionOrdinal::region_create))) return CUDA_ERROR_NOT_SUPPORTED;
  auto range = address_map().find(base);
  Region region{bytes, std::vector<std::byte>(bytes), range && range->kind == RangeKind::host_registered};
  auto create = [&] {
    return send::call_region_create(*caller.session, caller.context, {.address = base, .bytes = bytes});
  };
  CUresult result = create();
  if (result == CUDA_ERROR_OUT_OF_MEMORY && session_.shared_staging.make_room(caller)) result = create();
  if (result) return result;
  {
    std::lock_guard lock(mutex_);
    add(base, std::move(region));
  }
  // Only now: until then another thread that is given a pointer to it still comes here, and waits.
  pinned_.remove(base);
  return CUDA_SUCCESS;
} catch (const std::bad_alloc&) {
  return CUDA_ERROR_OUT_OF_MEMORY;
}

namespace {

// A memfd of so many bytes that nobody can resize. -1: the system has none.
int make_shared_file(size_t bytes) noexcept {
  int file = memfd_create("gpuwire-pinned", MFD_CLOEXEC | MFD_ALLOW_SEALING);
  if (file < 0) return -1;
  if (ftruncate(file, off_t(bytes)) == 0 && fcntl(file, F_ADD_SEALS, F_SEAL_SHRINK | F_SEAL_GROW | F_SEAL_SEAL) == 0)
    return file;
  close(file);
  return -1;
}

}  // namespace

bool can_share_pages(const Caller& caller) noexcept {
  // Within a host function the server may only answer when it has returned.
  if (in_host_callback() || !caller.session->facts().knows(uint32_t(wire::SessionOrdinal::region_share))) return false;
  const Road* road = road_of(*caller.session);
  return road && std::string_view(road->road_name()) == "shm";
}

CUresult share_pages(const Caller& caller, size_t mapped_bytes, void*& memory) noexcept {
  // A connection that was lost has lost descriptors that were on their way, and so may the next one.
  constexpr unsigned kTriesMax = 4;
  // A counter alone: nothing is published through it.
  static std::atomic<uint64_t> number{0};
  memory = nullptr;
  if (!can_share_pages(caller)) return CUDA_ERROR_NOT_SUPPORTED;
  Road* road = road_of(*caller.session);
  int file = make_shared_file(mapped_bytes);
  if (file < 0) return CUDA_ERROR_NOT_SUPPORTED;
  memory = map_pinned(mapped_bytes, file);
  // Where the system has large pages for such memory, pinning it is many times faster.
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
  // When it cannot be sent the session is over, and the server's side with it.
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
  std::lock_guard lock(mutex_);
  add(reinterpret_cast<uint64_t>(memory), Region{.bytes = mapped_bytes});
  return memory;
} catch (const std::bad_alloc&) {
  return nullptr;  // the server's side goes with the session
}

void HostRegions::add(uint64_t base, Region region) {
  bool mirrored = !region.shared();
  if (!regions_.emplace(base, std::move(region)).second) return;
  count_.store(regions_.size(), std::memory_order_relaxed);
  if (mirrored) mirrored_.store(mirrored_.load(std::memory_order_relaxed) + 1, std::memory_order_relaxed);
}

void HostRegions::remove(std::map<uint64_t, Region>::iterator which) noexcept {
  if (!which->second.shared())
    mirrored_.store(mirrored_.load(std::memory_order_relaxed) - 1, std::memory_order_relaxed);
  regions_.erase(which);
  count_.store(regions_.size(), std::memory_order_relaxed);
}

// A program that unmaps registered memory is wrong, and natively gets away with it.
bool HostRegions::there(uint64_t base, const Region& region) noexcept {
  return !region.registered || is_mapped(base, region.bytes);
}

bool HostRegions::holds(uint64_t address, uint64_t bytes) const noexcept {
  if (!any()) return false;
  std::lock_guard lock(mutex_);
  auto at = regions_.upper_bound(address);
  if (at == regions_.begin()) return false;
  --at;
  uint64_t offset = address - at->first, size = at->second.bytes;
  return offset < size && bytes <= size - offset;
}

void HostRegions::end(const Caller& caller, uint64_t base) noexcept {
  {
    std::lock_guard making(making_);
    pinned_.remove(base);
  }
  if (!any()) return;
  std::lock_guard sending(sending_);
  {
    std::lock_guard lock(mutex_);
    auto found = regions_.find(base);
    if (found == regions_.end()) return;
    pinned_.note_former(base, found->second.bytes);
    remove(found);
  }
  // When it cannot be sent the session is over, and the region with it.
  static_cast<void>(send::post_region_destroy(*caller.session, caller.context, {.address = base}));
}

void HostRegions::push_now(const Caller& caller) noexcept {
  push_changes(caller);
  // The server may only answer when a host function has returned: what its thread finds is made a region by the next
  // call of another one.
  if (!caller.state || in_host_callback()) return;
  while (auto wanted = pinned_.next_wanted()) {
    if (mirror(caller, wanted->base, wanted->bytes) == CUDA_SUCCESS) {
      push_changes(caller);  // which may point to more
      continue;
    }
    pinned_.refuse(wanted->base);
    say("a kernel was given a pointer to pinned memory that it cannot reach: the server cannot map it at the same "
        "addresses");
  }
}

void HostRegions::push_changes(const Caller& caller) noexcept try {
  std::vector<MirroredChange> changes;
  std::lock_guard sending(sending_);
  {
    // Not held while sending: a full send window empties through the thread that reads, which stores what the device
    // wrote under it.
    std::lock_guard lock(mutex_);
    for (auto& [base, region] : regions_) {
      if (region.shared()) {
        if (region.bytes <= kSharedTableBytesMax)
          pinned_.look_through_data({reinterpret_cast<const std::byte*>(base), region.bytes});
        continue;
      }
      if (!there(base, region)) continue;
      wire::take_changes(reinterpret_cast<const std::byte*>(base), region.shadow,
                         [&, at = base](wire::ByteChanges& found) {
                           pinned_.look_around(region.shadow, at, found.offset, found.bytes.size());
                           changes.push_back({at, 0, std::move(found)});
                         });
    }
  }
  // In which order the program wrote is not known. A kernel that waits for a word, and then reads what was written
  // before, finds it.
  std::stable_partition(changes.begin(), changes.end(),
                        [](const MirroredChange& change) { return change.bytes.bytes.size() > kSignalBytesMax; });
  post_changes(changes, [&](const wire::message::RegionChange& change, const Bulk& bulk) {
    return send::post_region_write(*caller.session, caller.context, change, bulk);
  });
} catch (const std::bad_alloc&) {
  // The call that follows sends its work without; the bytes that were not noted as sent go with the next one.
}

BulkSink HostRegions::sink(size_t bytes) { return mirrored_sink(incoming_, bytes); }

void HostRegions::stored(uint64_t address, uint64_t offset, std::span<const uint8_t> mask, size_t bytes) {
  if (bytes > incoming_.size()) return;
  std::lock_guard lock(mutex_);
  auto found = regions_.find(address);
  if (found == regions_.end() || found->second.shared() || !there(address, found->second))
    return;  // it has just been freed
  static_cast<void>(wire::apply_changes(reinterpret_cast<std::byte*>(address), found->second.shadow, offset,
                                        std::span(incoming_).first(bytes), mask));
}

void HostRegions::ended(SessionEnd) noexcept {
  std::lock_guard lock(mutex_);
  regions_.clear();
  count_.store(0, std::memory_order_relaxed);
  mirrored_.store(0, std::memory_order_relaxed);
}

}  // namespace gpuwire::client
