// Host regions: pinned memory of the program that the server holds at the same addresses, so that kernels reach it.
// Pinned memory becomes one when the device first gets a pointer to it (pinned_pointers); until then it costs nothing.
// The two copies are synchronised where CUDA promises it: the program's writes go to the server before any work or wait
// is sent; the device's writes come back before the answer to a synchronisation.
#pragma once

#include <atomic>
#include <cstddef>
#include <cstdint>
#include <map>
#include <span>
#include <vector>

#include "client_stub/driver/state/call/caller.hpp"
#include "client_stub/driver/state/host_memory/pinned_pointers.hpp"
#include "client_stub/driver/state/session/session_part.hpp"
#include "client_stub/session/session.hpp"
#include "protocol/threads/mutex.hpp"

namespace gpuwire::client {

class ServerSession;
struct AddressRange;
struct MirroredChange;

// Those of one session. Any thread. push() compares every region.
class HostRegions final : public SessionPart {
 public:
  HostRegions(ServerSession& session, SessionParts& parts, PinnedPointers& pinned) noexcept;

  bool any() const noexcept { return count_.load(std::memory_order_relaxed) != 0; }

  // Is there but one copy of each?
  bool all_shared() const noexcept { return mirrored_.load(std::memory_order_relaxed) == 0; }

  // May the address be in a region? Two loads.
  bool may_hold(uint64_t address) const noexcept {
    return address >= low_.load(std::memory_order_relaxed) && address < high_.load(std::memory_order_relaxed);
  }

  // New memory of whole pages that this process and the server's have both mapped and the device reaches: a region with
  // nothing to bring together. Null: the server is on another machine, or may not or cannot have it.
  void* allocate_shared(const Caller& caller, size_t mapped_bytes) noexcept;

  // Makes pinned memory [base, base + bytes) a region; success when it is one already. CUDA_ERROR_NOT_SUPPORTED: the
  // server's addresses are taken. CUDA_ERROR_INVALID_VALUE: it is not pinned (pinned_pointers), or no more.
  CUresult mirror(const Caller& caller, uint64_t base, uint64_t bytes) noexcept;
  // The same for copies of graphs alone, at this address at the server: kernels are not expected to use the memory, so
  // its changes go there with the launches that name it (push_for_graphs), and it counts as a region in no other
  // question. A pointer that the device is given makes it an ordinary one. Both kinds in one: a graph's copies and its
  // kernels must find the same bytes. CUDA_ERROR_NOT_SUPPORTED: also for a server that knows no such regions.
  CUresult mirror_for_graphs(const Caller& caller, uint64_t base, uint64_t bytes) noexcept;
  // `ranges`: addresses in such regions, each followed by a number of bytes. Sends the program's changes there; when it
  // returns, the following frames find them.
  void push_for_graphs(const Caller& caller, std::span<const uint64_t> ranges) noexcept;
  // Makes those regions again whose memory was unregistered and is pinned once more.
  void restore_for_graphs(const Caller& caller, std::span<const uint64_t> ranges) noexcept;
  // Is this range within one region?
  bool holds(uint64_t address, uint64_t bytes) const noexcept;
  // The memory is pinned no more: its region ends at both sides, if it was one, and it will not become one.
  void end(const Caller& caller, uint64_t base) noexcept;

  // Makes regions of the pinned memory to which the device was given pointers, and sends the program's changes in all
  // regions. When it returns, the following frames find them. Costs three loads when there are none. The device reads
  // shared memory directly.
  void push(const Caller& caller) noexcept {
    if (mirrored_.load(std::memory_order_relaxed) || pinned_.wanted() || (any() && pinned_.any_unseen())) [[unlikely]]
      push_now(caller);
  }

  // The same for the existing regions: for a wait that a kernel may end only when it sees the program's write.
  void push_known(const Caller& caller) noexcept {
    if (mirrored_.load(std::memory_order_relaxed)) push_changes(caller);
  }

  // For region_data notices: the destination of the bulk, and the step afterwards. The thread that reads the
  // connection.
  BulkSink sink(size_t bytes);
  void stored(uint64_t address, uint64_t offset, std::span<const uint8_t> mask, size_t bytes);

  void ended(SessionEnd how) noexcept override;    // all is forgotten: the server has forgotten it, too
  void after_fork_in_child() noexcept override {}  // nobody there asks

 private:
  // Shared memory up to this size is looked through for pointers to other pinned memory, before each call that sends
  // work while there is any that the device does not know, once the device has been given an address in it. Where there
  // is much of it and little of the other, the device is made to know the other in its place.
  static constexpr uint64_t kSharedTableBytesMax = 64u << 10;

  struct Region {
    uint64_t bytes = 0;
    // The content of the server's copy, as far as the client knows it. Empty if there is only one copy.
    std::vector<std::byte> shadow;
    // The memory is the program's own: the program may unmap it, or take its rights, without a call.
    bool registered = false;
    // Registered as read-only: the device's writes are not sent to the program.
    bool read_only = false;
    // The bytes of the shadow that the device wrote, and that the memory lacks, because it could not be written: bit
    // i % 8 of byte i / 8. Empty: none.
    std::vector<uint8_t> late;
    bool shared() const noexcept { return shadow.empty(); }
  };
  using Regions = std::map<uint64_t, Region>;
  enum class Users : uint8_t { kernels, graphs };
  void add(uint64_t base, Region region) REQUIRES(mutex_);
  void remove(Regions::iterator which) noexcept REQUIRES(mutex_);
  void note_bounds() noexcept REQUIRES(mutex_);
  // The region that holds the address, or null.
  static Regions::value_type* find(Regions& regions, uint64_t address) noexcept;
  // Compares bytes [offset, offset + bytes) of a region that is not shared with its shadow. Without effect
  // where the memory is not there.
  void find_changes(uint64_t base, Region& region, uint64_t offset, uint64_t bytes,
                    std::vector<MirroredChange>& changes) REQUIRES(mutex_);
  void post(const Caller& caller, const std::vector<MirroredChange>& changes);
  // Writes the bytes of the device that came while the memory could not be written. False: it still cannot be.
  static bool bring_late(uint64_t base, Region& region) noexcept;
  // Stores bytes of the device in memory without the rights for it, or notes them for bring_late().
  static void store_without_rights(uint64_t base, Region& region, uint64_t offset, std::span<const std::byte> bytes,
                                   std::span<const uint8_t> mask);
  bool knows(uint64_t base, Users users) const noexcept;
  CUresult make(const Caller& caller, uint64_t base, uint64_t bytes, Users users) REQUIRES(making_);
  // False: it is no region for graphs.
  bool open_to_kernels(const Caller& caller, uint64_t base) REQUIRES(making_);
  void push_now(const Caller& caller) noexcept;
  void push_changes(const Caller& caller) noexcept;
  void scan_tables() REQUIRES(sending_);

  ServerSession& session_;
  PinnedPointers& pinned_;
  // Outermost: held while a region is made, so that two threads do not make the same one, and none is made of memory
  // that is being released. The server may only answer when it has got the answer to a host function, whose thread
  // sends regions: so it is not sending_. Data that must arrive first are waited for without it: other threads make
  // their regions meanwhile.
  Mutex making_;
  // Held while changes are found and sent, so that two threads do not send in the wrong order. The thread that reads
  // the connection never takes it.
  mutable Mutex sending_;
  // A leaf.
  mutable Mutex mutex_;
  // The regions by their first address.
  Regions regions_ GUARDED_BY(mutex_);
  // The regions that only graphs use. all_shared() and similar functions leave them out.
  Regions for_graphs_ GUARDED_BY(mutex_);
  // The bulk of the notice that is being read. Used by the reading thread only.
  std::vector<std::byte> incoming_;
  // Size of regions_, changed under the lock. Relaxed: a thread that has the region's pointer got it after the region
  // was made, from the thread that made it or by synchronising with it.
  std::atomic<size_t> count_{0};
  std::atomic<size_t> mirrored_{0};         // those of them that are not shared; the same holds
  std::atomic<uint64_t> low_{0}, high_{0};  // all regions lie in [low_, high_); the same holds
};

// Is there memory at all of [address, address + bytes)? What it may be used for is not looked at.
bool is_mapped(uint64_t address, uint64_t bytes) noexcept;

// Page-aligned memory at an address that is likely to be free at the server too. Null: there is no memory. `file`: the
// file to map, shared; -1: private memory.
void* map_pinned(size_t mapped_bytes, int file = -1) noexcept;

// New whole pages that this process and the server's have both mapped, at the same address, and that the device
// reaches. Otherwise `memory` is null: the server is on another machine, or has no room for them
// (CUDA_ERROR_OUT_OF_MEMORY), or cannot have them, or a connection was lost with them (CUDA_ERROR_NOT_FOUND) and the
// next attempt may succeed.
CUresult share_pages(const Caller& caller, size_t mapped_bytes, void*& memory) noexcept;
// They are nobody's any more, at both sides.
void unshare_pages(const Caller& caller, void* memory, size_t mapped_bytes) noexcept;
// Does the session meet their conditions: a connection that carries descriptors, to a server on this machine?
bool can_share_pages(const Caller& caller) noexcept;

// Pinned memory of the program that a call uses as a device pointer: makes it a region, and sends its content. An
// error: the device cannot reach it; CUDA_ERROR_OUT_OF_MEMORY: because there is no memory for it.
CUresult reach_pinned(const AddressRange& pinned) noexcept;

}  // namespace gpuwire::client
