// Host regions: pinned memory of the client, mapped in the worker at the same addresses and registered with the driver,
// so that the device reaches it under the program's pointer.
#pragma once

#include <cuda.h>

#include <atomic>
#include <cstdint>
#include <functional>
#include <map>
#include <span>
#include <vector>

#include "protocol/threads/mutex.hpp"
#include "protocol/wire/byte_changes.hpp"
#include "server/base/host_memory.hpp"
#include "server/base/owned_descriptor.hpp"
#include "server/base/zeroed_memory.hpp"

namespace gpuwire::server {

class Replay;

// The executor creates, destroys and writes; any thread delivers. A function that reports completed work calls
// deliver() before it answers: the work's writes to the regions leave first.
class HostRegions {
 public:
  explicit HostRegions(Replay& replay) : replay_(replay) {}
  ~HostRegions();
  HostRegions(const HostRegions&) = delete;
  HostRegions& operator=(const HostRegions&) = delete;

  // The device work whose writes are searched for: kernels at any time, copies of graphs while a launch is running.
  enum class Users : uint8_t { kernels, graphs };
  // Bytes [address, address + bytes).
  struct Range {
    uint64_t address = 0, bytes = 0;
    auto operator<=>(const Range&) const = default;
  };

  // Maps a region and registers it in the current context. CUDA_ERROR_INVALID_VALUE: the address is not valid for a
  // region; CUDA_ERROR_NOT_SUPPORTED: the address is in use in this process, or the driver would give the device
  // another address; CUDA_ERROR_OUT_OF_MEMORY: a limit is exceeded.
  CUresult create(uint64_t address, uint64_t bytes, Users users = Users::kernels);
  // Opens a region to kernels. Returns false if there is no such mirrored region.
  bool open_to_kernels(uint64_t address);
  // Makes a region of memory that the client has mapped, too: `memory` is the client's memfd. CUDA_ERROR_INVALID_VALUE:
  // the file is not sealed against shrinking.
  CUresult create_shared(uint64_t address, uint64_t bytes, const OwnedDescriptor& memory);
  CUresult destroy(uint64_t address);
  // Executor. Returns whether all these bytes lie in one shared region.
  bool holds_shared(uint64_t address, uint64_t bytes) const;
  // Sets the source of descriptors that the client has sent. Precondition: no call has run.
  void take_descriptors_from(std::function<int(uint64_t number)> source) { descriptors_ = std::move(source); }
  // Takes the descriptor of this number. The result is empty if the client has sent none.
  OwnedDescriptor take_descriptor(uint64_t number) { return OwnedDescriptor(descriptors_ ? descriptors_(number) : -1); }
  // Writes bytes of the client to a region. Returns false if there is no such region, or the bytes do not fit into it.
  bool write(uint64_t address, uint64_t offset, std::span<const std::byte> bytes, std::span<const uint8_t> mask);
  // Sends the device's writes since the last call, to regions and to graph memory, as notices.
  void deliver();
  bool any_launched() const { return launched_count_.load(std::memory_order_acquire) != 0; }
  bool any_mirrored() const { return mirrored_.load(std::memory_order_acquire) != 0; }
  // Counts a launch of a graph that copies from or to these bytes. Returns false if some of them are in no mirrored
  // region. The caller must call ended() once for each successful launched(), on any thread.
  bool launched(const std::vector<Range>& ranges);
  void ended(const std::vector<Range>& ranges);
  // Unmaps all regions. Precondition: the session's contexts have ended.
  void clear();

 private:
  struct Region {
    uint64_t bytes = 0;
    // The known content of the client's copy. A shared region has no shadow, because it has only one copy.
    ZeroedMemory shadow;
    // The charge of the shadow; the driver's ledger has the mapping.
    HostCharge charge;
    Users users = Users::kernels;
  };
  using Regions = std::map<uint64_t, Region>;
  // Returns the region with a shadow that contains all these bytes, or end().
  Regions::iterator find_mirrored(const Range& range) REQUIRES(mutex_);
  CUresult check_new(uint64_t address, uint64_t bytes) const;
  // A run of whole pages, mapped and registered at once. A program may register memory that begins in a page where
  // other registered memory ends: then the new region shares the existing pages, and maps those that are missing.
  struct Pages {
    uint64_t end = 0;
    // The number of regions with bytes in these pages.
    uint32_t regions = 0;
  };
  CUresult add_pages(uint64_t begin, uint64_t end);
  CUresult make_pages(uint64_t begin, uint64_t end, int memory = -1);
  void drop_pages(uint64_t begin, uint64_t end);

  struct Place {
    uint64_t address = 0, offset = 0;
  };
  // Finds the changes in the next piece from `place` on, and advances `place`. Returns false if there is no further
  // piece.
  bool take_next(Place& place, Place& of, std::vector<wire::ByteChanges>& changes) REQUIRES(delivering_);
  // take_next() for the bytes of launched graphs; `range`: the range that contains `place`.
  bool take_next_launched(Range& range, Place& place, Place& of, std::vector<wire::ByteChanges>& changes)
      REQUIRES(delivering_);
  static void compare(Regions::iterator region, uint64_t offset, uint64_t bytes,
                      std::vector<wire::ByteChanges>& changes);
  void send(const Place& of, const std::vector<wire::ByteChanges>& changes);

  Replay& replay_;
  std::function<int(uint64_t)> descriptors_;
  // Held while sending, so that the next answering thread finds the data sent. Sending waits for room, which comes with
  // the client's next frames; so the thread that reads those frames and writes their data to regions takes `mutex_`
  // alone.
  Mutex delivering_;
  // A leaf.
  mutable Mutex mutex_;
  // The regions by the client's addresses.
  Regions regions_ GUARDED_BY(mutex_);
  // Ranges in regions for graphs, with the number of running launches that use each.
  std::map<Range, unsigned> launched_ GUARDED_BY(mutex_);
  // Executor only. The executor holds no lock while it calls the driver, because a callback in a graph may wait for the
  // lock, and the driver for the callback.
  // The runs of pages by their first page; disjoint.
  std::map<uint64_t, Pages> pages_;
  // The bytes of all pages.
  uint64_t mapped_bytes_ = 0;
  // The number of regions with a shadow that are open to kernels, and the size of launched_; changed under mutex_.
  // Acquire/release: the executor starts a thread that must see a region or a launch after it has counted it.
  std::atomic<size_t> mirrored_{0}, launched_count_{0};
};

}  // namespace gpuwire::server
