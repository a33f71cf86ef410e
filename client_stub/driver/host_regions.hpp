// Host regions: pinned memory of the program that the server holds at the same addresses, so that kernels reach it. The two copies are
// brought together where CUDA promises it: what the program wrote goes to the server before any work or wait that is sent; what the device
// wrote comes back before the answer to a synchronisation.
#pragma once

#include <atomic>
#include <cstddef>
#include <cstdint>
#include <map>
#include <mutex>
#include <span>
#include <vector>

#include "client_stub/driver/caller.hpp"
#include "client_stub/session/session.hpp"

namespace gpuwire::client {

// Any thread. push() compares every region, so regions that nobody asked for are kept small.
class HostRegions {
 public:
  bool any() const noexcept { return count_.load(std::memory_order_relaxed) != 0; }

  // Makes [base, base + bytes) a region; success when it is one already. CUDA_ERROR_NOT_SUPPORTED: the server's addresses are taken.
  CUresult mirror(const Caller& caller, uint64_t base, uint64_t bytes) noexcept;
  // The same for memory that was only allocated: refused when it is large, or when many such regions exist.
  void mirror_if_small(const Caller& caller, uint64_t base, uint64_t bytes) noexcept;
  // Is this range within one region?
  bool holds(uint64_t address, uint64_t bytes) const noexcept;
  // The region ends at both sides; nothing happens when there is none.
  void end(const Caller& caller, uint64_t base) noexcept;

  // Sends what the program has changed. When it returns, the frames that follow find it.
  void push(const Caller& caller) noexcept;

  // For region_data notices: where the bulk goes, and what to do with it then. The thread that reads the connection.
  BulkSink sink(size_t bytes);
  void stored(uint64_t address, uint64_t offset, std::span<const uint8_t> mask, size_t bytes);

  // Forgets all: the session has ended.
  void clear() noexcept;

 private:
  struct Region {
    std::vector<std::byte> shadow;  // what the server's copy holds, as far as known here
    bool implicit = false;          // made by mirror_if_small()
  };
  CUresult create(const Caller& caller, uint64_t base, uint64_t bytes, bool implicit) noexcept;

  // Outermost: held while a region is made, so that two threads do not make the same one. The server may only answer when it has got the
  // answer to a host function, whose thread sends regions: so it is not sending_.
  std::mutex making_;
  // Held while changes are found and sent, so that two threads do not send in the wrong order. The thread that reads the connection never
  // takes it.
  mutable std::mutex sending_;
  mutable std::mutex mutex_;  // a leaf: the members below
  std::map<uint64_t, Region> regions_;  // by base
  uint64_t implicit_bytes_ = 0;
  std::vector<std::byte> incoming_;     // bulk of the notice being read; the reading thread only
  // Size of regions_, changed under the lock. Relaxed: a thread that has the region's pointer got it after the region was made, from the
  // thread that made it or by synchronising with it.
  std::atomic<size_t> count_{0};
};

HostRegions& host_regions() noexcept;

// Page-aligned private memory at an address that is likely to be free at the server too. Null: there is no memory.
void* map_pinned(size_t mapped_bytes) noexcept;

// An address that a call uses as a device pointer, in pinned memory of the program: makes it a region if it is none yet. False: it is not in
// pinned memory, or cannot be reached by the device.
bool reach_pinned(uint64_t address, uint64_t bytes) noexcept;

}  // namespace gpuwire::client
