#include "client_stub/driver/host_regions.hpp"

#include <sys/mman.h>

#include <new>
#include <utility>

#include "client_stub/driver/address_map.hpp"
#include "client_stub/driver/region_changes.hpp"
#include "client_stub/session/call.hpp"
#include "protocol/wire/byte_changes.hpp"
#include "schema/session.capnp.h"

#ifndef MAP_FIXED_NOREPLACE
#define MAP_FIXED_NOREPLACE 0x100000  // Linux 4.17; older kernels take it as a hint, which is good enough here
#endif

namespace gpuwire::client {
namespace {

// Allocations up to this size can be used by the device without being asked for (unified addressing makes no difference)...
constexpr uint64_t kImplicitMirrorBytesMax = 64u << 10;
// ...up to this much in all, because each is compared before every launch...
constexpr uint64_t kImplicitMirrorTotalMax = 256u << 10;
// ...and past it the smallest still are, up to this much.
constexpr uint64_t kImplicitTinyBytesMax = 4u << 10;
constexpr uint64_t kImplicitTinyTotalMax = 1u << 20;

// Between where Linux puts position-independent programs (from 0x5555'5555'4000 up) and what the driver reserves for itself.
constexpr uint64_t kWindowBegin = 0x5000'0000'0000;
constexpr uint64_t kWindowEnd = 0x5500'0000'0000;
constexpr unsigned kHintsMax = 16;

}  // namespace

HostRegions& host_regions() noexcept {
  // Never destroyed: notices may arrive while the program's exit handlers run.
  alignas(HostRegions) static std::byte storage[sizeof(HostRegions)];
  static auto* const regions = new (storage) HostRegions;
  return *regions;
}

void* map_pinned(size_t mapped_bytes) noexcept {
  // A counter alone: nothing is published through it. Addresses are not given out again soon, so that the server has time to let go of them.
  static std::atomic<uint64_t> next{kWindowBegin};
  for (unsigned i = 0; i < kHintsMax && mapped_bytes < kWindowEnd - kWindowBegin; ++i) {
    uint64_t hint = next.fetch_add(mapped_bytes, std::memory_order_relaxed);
    if (hint > kWindowEnd - mapped_bytes) {
      next.store(kWindowBegin, std::memory_order_relaxed);
      continue;
    }
    void* got = mmap(reinterpret_cast<void*>(hint), mapped_bytes, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_FIXED_NOREPLACE, -1, 0);
    if (got != MAP_FAILED) return got;
  }
  void* anywhere = mmap(nullptr, mapped_bytes, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
  return anywhere == MAP_FAILED ? nullptr : anywhere;
}

bool reach_pinned(uint64_t address, uint64_t bytes) noexcept {
  if (host_regions().holds(address, bytes)) return true;
  auto range = address_map().find(address);
  if (!range || !is_host(range->kind) || !range->contains(address, bytes)) return false;
  Caller caller = enter(Needs::context);
  if (caller.error || host_regions().mirror(caller, range->base, range->bytes)) return false;
  host_regions().push(caller);
  return true;
}

CUresult HostRegions::create(const Caller& caller, uint64_t base, uint64_t bytes, bool implicit) noexcept try {
  std::lock_guard making(making_);
  {
    std::lock_guard lock(mutex_);
    if (regions_.contains(base)) return CUDA_SUCCESS;
  }
  constexpr auto kOrdinal = uint32_t(wire::SessionOrdinal::region_create);
  if (!caller.session->facts().knows(kOrdinal)) return CUDA_ERROR_NOT_SUPPORTED;
  Region region{std::vector<std::byte>(bytes), implicit};
  CUresult result = call<schema::RegionCreate, schema::Result>(
      *caller.session, kOrdinal, caller.context, message_words<schema::RegionCreate>(),
      [&](auto create) {
        create.setAddress(base);
        create.setBytes(bytes);
      },
      [](auto) {});
  if (result) return result;
  std::lock_guard lock(mutex_);
  regions_.emplace(base, std::move(region));
  if (implicit) implicit_bytes_ += bytes;
  count_.store(regions_.size(), std::memory_order_relaxed);
  return CUDA_SUCCESS;
} catch (const std::bad_alloc&) {
  return CUDA_ERROR_OUT_OF_MEMORY;
}

CUresult HostRegions::mirror(const Caller& caller, uint64_t base, uint64_t bytes) noexcept { return create(caller, base, bytes, false); }

void HostRegions::mirror_if_small(const Caller& caller, uint64_t base, uint64_t bytes) noexcept {
  if (bytes > kImplicitMirrorBytesMax) return;
  {
    std::lock_guard lock(mutex_);
    uint64_t limit = bytes <= kImplicitTinyBytesMax ? kImplicitTinyTotalMax : kImplicitMirrorTotalMax;
    if (implicit_bytes_ + bytes > limit) return;
  }
  // Where it fails the memory is still good for copies.
  static_cast<void>(create(caller, base, bytes, true));
}

bool HostRegions::holds(uint64_t address, uint64_t bytes) const noexcept {
  if (!any()) return false;
  std::lock_guard lock(mutex_);
  auto at = regions_.upper_bound(address);
  if (at == regions_.begin()) return false;
  --at;
  uint64_t offset = address - at->first, size = at->second.shadow.size();
  return offset < size && bytes <= size - offset;
}

void HostRegions::end(const Caller& caller, uint64_t base) noexcept {
  if (!any()) return;
  std::lock_guard sending(sending_);
  {
    std::lock_guard lock(mutex_);
    auto found = regions_.find(base);
    if (found == regions_.end()) return;
    if (found->second.implicit) implicit_bytes_ -= found->second.shadow.size();
    regions_.erase(found);
    count_.store(regions_.size(), std::memory_order_relaxed);
  }
  // When it cannot be sent the session is over, and the region with it.
  static_cast<void>(post<schema::RegionDestroy>(*caller.session, uint32_t(wire::SessionOrdinal::region_destroy), caller.context,
                                                message_words<schema::RegionDestroy>(), [&](auto destroy) { destroy.setAddress(base); }));
}

void HostRegions::push(const Caller& caller) noexcept try {
  std::vector<MirroredChange> changes;
  std::lock_guard sending(sending_);
  {
    // Not held while sending: a full send window empties through the thread that reads, which stores what the device wrote under it.
    std::lock_guard lock(mutex_);
    for (auto& [base, region] : regions_) {
      wire::take_changes(reinterpret_cast<const std::byte*>(base), region.shadow,
                         [&, at = base](wire::ByteChanges& found) { changes.push_back({at, 0, std::move(found)}); });
    }
  }
  post_changes(caller, wire::SessionOrdinal::region_write, changes);
} catch (const std::bad_alloc&) {
  // The call that follows sends its work without; the bytes that were not noted as sent go with the next one.
}

BulkSink HostRegions::sink(size_t bytes) { return mirrored_sink(incoming_, bytes); }

void HostRegions::stored(uint64_t address, uint64_t offset, std::span<const uint8_t> mask, size_t bytes) {
  if (bytes > incoming_.size()) return;
  std::lock_guard lock(mutex_);
  auto found = regions_.find(address);
  if (found == regions_.end()) return;  // it has just been freed
  static_cast<void>(wire::apply_changes(reinterpret_cast<std::byte*>(address), found->second.shadow, offset, std::span(incoming_).first(bytes), mask));
}

void HostRegions::clear() noexcept {
  std::lock_guard lock(mutex_);
  regions_.clear();
  implicit_bytes_ = 0;
  count_.store(0, std::memory_order_relaxed);
}

}  // namespace gpuwire::client
