// Host regions: pinned memory of the client, mapped here at the same addresses and registered with the driver, so that
// the device reaches it under the pointer that the program has.
#pragma once

#include <cuda.h>

#include <atomic>
#include <cstdint>
#include <functional>
#include <map>
#include <mutex>
#include <span>
#include <vector>

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

  // Whose writes are looked for: those of kernels at any time, those of graphs' copies while a launch is under way.
  enum class Users : uint8_t { kernels, graphs };
  // Bytes [address, address + bytes).
  struct Range {
    uint64_t address = 0, bytes = 0;
    auto operator<=>(const Range&) const = default;
  };

  // Maps and registers, in the current context. CUDA_ERROR_INVALID_VALUE: not an address for a region;
  // CUDA_ERROR_NOT_SUPPORTED: it is taken here, or the driver would know it by another address;
  // CUDA_ERROR_OUT_OF_MEMORY: over a limit.
  CUresult create(uint64_t address, uint64_t bytes, Users users = Users::kernels);
  // Kernels use the region from now on. False: there is no such region of a client on another machine.
  bool open_to_kernels(uint64_t address);
  // The same of memory that the client has mapped, too: `memory` is a memfd of its making. CUDA_ERROR_INVALID_VALUE: it
  // is none that can be trusted to stay as large as it is.
  CUresult create_shared(uint64_t address, uint64_t bytes, const OwnedDescriptor& memory);
  CUresult destroy(uint64_t address);
  // Executor. Is all of this within one region of pages that the client has, too?
  bool holds_shared(uint64_t address, uint64_t bytes) const;
  // Where descriptors that the client gives are taken from; before the first call.
  void take_descriptors_from(std::function<int(uint64_t number)> source) { descriptors_ = std::move(source); }
  // Empty: the client has given none of this number.
  OwnedDescriptor take_descriptor(uint64_t number) { return OwnedDescriptor(descriptors_ ? descriptors_(number) : -1); }
  // False: no such region, or it does not fit.
  bool write(uint64_t address, uint64_t offset, std::span<const std::byte> bytes, std::span<const uint8_t> mask);
  // Sends the device's writes since the last time, here and to graph memory, as notices.
  void deliver();
  bool any_launched() const { return launched_count_.load(std::memory_order_acquire) != 0; }
  bool any_mirrored() const { return mirrored_.load(std::memory_order_acquire) != 0; }
  // A graph that copies from or to these bytes is about to be launched; false: some of them are in no region that has
  // a copy at the client. Each is to be followed by ended(), any thread.
  bool launched(const std::vector<Range>& ranges);
  void ended(const std::vector<Range>& ranges);
  // At the end of the session, when the contexts are gone: unmaps all.
  void clear();

 private:
  struct Region {
    uint64_t bytes = 0;
    ZeroedMemory shadow;  // the content of the client's copy, as far as known here; none: there is only one copy
    HostCharge charge;    // of the shadow; the driver's ledger has the mapping
    Users users = Users::kernels;
  };
  using Regions = std::map<uint64_t, Region>;
  // Under the lock. The region with a shadow that all these bytes are in, or end().
  Regions::iterator find_mirrored(const Range& range);
  CUresult check_new(uint64_t address, uint64_t bytes) const;
  // Whole pages, mapped and registered. A program may register memory that begins in a page where other registered
  // memory ends: then a region has the pages that another one has brought, and brings those that are missing.
  struct Pages {
    uint64_t end = 0;
    uint32_t regions = 0;  // that have bytes in it
  };
  CUresult add_pages(uint64_t begin, uint64_t end);
  CUresult make_pages(uint64_t begin, uint64_t end, int memory = -1);
  void drop_pages(uint64_t begin, uint64_t end);

  struct Place {
    uint64_t address = 0, offset = 0;
  };
  // Finds the changes in the next piece that is compared at once, from `place` on, and advances `place`. False: there
  // is no further piece. Under delivering_.
  bool take_next(Place& place, Place& of, std::vector<wire::ByteChanges>& changes);
  // The same in the bytes of launched graphs: `range` is the one that the place is in.
  bool take_next_launched(Range& range, Place& place, Place& of, std::vector<wire::ByteChanges>& changes);
  // Under the lock.
  static void compare(Regions::iterator region, uint64_t offset, uint64_t bytes,
                      std::vector<wire::ByteChanges>& changes);
  void send(const Place& of, const std::vector<wire::ByteChanges>& changes);

  Replay& replay_;
  std::function<int(uint64_t)> descriptors_;
  // Held while sending, so that the next answering thread finds that the data have left. Sending waits for room, which
  // comes with the client's next frames; the thread that reads them, and writes their data to regions, takes `mutex_`
  // alone.
  std::mutex delivering_;
  mutable std::mutex mutex_;            // a leaf
  Regions regions_;                     // by the client's address
  std::map<Range, unsigned> launched_;  // ranges in regions for graphs, and how many launches under way use each
  // Executor only: it holds no lock while it calls the driver, because a callback in a graph may wait for that lock,
  // and the driver for the callback.
  std::map<uint64_t, Pages> pages_;  // by first page; disjoint
  uint64_t mapped_bytes_ = 0;        // of all pages
  // Those of regions_ that have a shadow and are for kernels, and the size of launched_; changed under the lock.
  // Acquire/release: a thread that must see a region or a launch was started by the executor after it was counted.
  std::atomic<size_t> mirrored_{0}, launched_count_{0};
};

}  // namespace gpuwire::server
