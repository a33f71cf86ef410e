// Host regions: pinned memory of the program that the server holds at the same addresses, so that kernels reach it.
// Pinned memory becomes a region when the device first gets a pointer to it (pinned_pointers); until then it costs
// nothing. The two copies are synchronised where CUDA promises it: the program's writes are sent before any work or
// wait is sent, and the device's writes arrive before the answer to a synchronisation.
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

// The host regions of one session. Any thread. push() compares every region.
class HostRegions final : public SessionPart {
 public:
  HostRegions(ServerSession& session, SessionParts& parts, PinnedPointers& pinned) noexcept;

  bool any() const noexcept { return count_.load(std::memory_order_relaxed) != 0; }

  // Returns whether each region has only one copy.
  bool all_shared() const noexcept { return mirrored_.load(std::memory_order_relaxed) == 0; }

  // Returns whether the address may be in a region. Costs two loads.
  bool may_hold(uint64_t address) const noexcept {
    return address >= low_.load(std::memory_order_relaxed) && address < high_.load(std::memory_order_relaxed);
  }

  // Allocates whole pages that this process and the server's have both mapped and the device reaches: a region without
  // anything to synchronise. Returns null if the server is on another machine, or may not or cannot have the memory.
  void* allocate_shared(const Caller& caller, size_t mapped_bytes) noexcept;

  // Makes pinned memory [base, base + bytes) a region; returns success if it is one already. CUDA_ERROR_NOT_SUPPORTED:
  // the server's addresses are taken. CUDA_ERROR_INVALID_VALUE: the memory is not pinned (pinned_pointers), or no
  // longer.
  CUresult mirror(const Caller& caller, uint64_t base, uint64_t bytes) noexcept;
  // Makes pinned memory a region for copies of graphs alone, at the same address at the server. Kernels are not
  // expected to use the memory, so its changes are sent with the launches that name it (push_for_graphs), and other
  // functions do not count it as a region. When the device gets a pointer to it, the region becomes an ordinary one;
  // there are never two regions for the memory, because a graph's copies and its kernels must find the same bytes.
  // CUDA_ERROR_NOT_SUPPORTED: also for a server without such regions.
  CUresult mirror_for_graphs(const Caller& caller, uint64_t base, uint64_t bytes) noexcept;
  // Sends the program's changes in regions for graphs; `ranges` has addresses, each followed by a number of bytes. When
  // the function returns, the following frames find the changes.
  void push_for_graphs(const Caller& caller, std::span<const uint64_t> ranges) noexcept;
  // Makes the regions again whose memory was unregistered and is pinned once more.
  void restore_for_graphs(const Caller& caller, std::span<const uint64_t> ranges) noexcept;
  // Returns whether the range is within one region.
  bool holds(uint64_t address, uint64_t bytes) const noexcept;
  // Notes that the memory is no longer pinned: its region, if it has one, ends at both sides, and the memory becomes
  // none.
  void end(const Caller& caller, uint64_t base) noexcept;

  // Makes regions of the pinned memory to which the device was given pointers, and sends the program's changes in all
  // regions. When it returns, the following frames find them. Costs three loads when there are none. The device reads
  // shared memory directly.
  void push(const Caller& caller) noexcept {
    if (mirrored_.load(std::memory_order_relaxed) || pinned_.wanted() || (any() && pinned_.any_unseen())) [[unlikely]]
      push_now(caller);
  }

  // Sends the changes in existing regions, for a wait that a kernel may end only when it sees the program's write.
  void push_known(const Caller& caller) noexcept {
    if (mirrored_.load(std::memory_order_relaxed)) push_changes(caller);
  }

  // For region_data notices: the destination of the bulk, and the step after its arrival. Thread: the one that reads
  // the connection.
  BulkSink sink(size_t bytes);
  void stored(uint64_t address, uint64_t offset, std::span<const uint8_t> mask, size_t bytes);

  // All is forgotten: the server has forgotten it, too.
  void ended(SessionEnd how) noexcept override;
  void after_fork_in_child() noexcept override {}  // a child does not use it

 private:
  // Shared memory up to this size is scanned for pointers to other pinned memory, before each call that sends work,
  // once the device has got an address in it and while there is pinned memory that the device does not know. If there
  // is much shared memory and little of the other, the device gets to know the other memory instead.
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
  // Returns the region that holds the address, or null.
  static Regions::value_type* find(Regions& regions, uint64_t address) noexcept;
  // Compares bytes [offset, offset + bytes) of a region that is not shared with its shadow. Has no effect if the memory
  // is unmapped.
  void find_changes(uint64_t base, Region& region, uint64_t offset, uint64_t bytes,
                    std::vector<MirroredChange>& changes) REQUIRES(mutex_);
  void post(const Caller& caller, const std::vector<MirroredChange>& changes);
  // Writes the bytes of the device that arrived while the memory could not be written. Returns false if it still cannot
  // be written.
  static bool bring_late(uint64_t base, Region& region) noexcept;
  // Stores bytes of the device in memory without the rights for it, or notes them for bring_late().
  static void store_without_rights(uint64_t base, Region& region, uint64_t offset, std::span<const std::byte> bytes,
                                   std::span<const uint8_t> mask);
  bool knows(uint64_t base, Users users) const noexcept;
  CUresult make(const Caller& caller, uint64_t base, uint64_t bytes, Users users) REQUIRES(making_);
  // Makes a region for graphs an ordinary one. Returns false if there is no such region.
  bool open_to_kernels(const Caller& caller, uint64_t base) REQUIRES(making_);
  void push_now(const Caller& caller) noexcept;
  void push_changes(const Caller& caller) noexcept;
  void scan_tables() REQUIRES(sending_);

  ServerSession& session_;
  PinnedPointers& pinned_;
  // Outermost: held while a region is made, so that two threads do not make the same one, and none is made of memory
  // that is being released. It is a lock apart from sending_, because the server may answer only after a host function,
  // whose thread sends regions. It is not held during a wait for data that must arrive first, so that other threads can
  // make their regions.
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
  // The number of regions that are not shared. Relaxed, for the same reason.
  std::atomic<size_t> mirrored_{0};
  // All regions lie in [low_, high_). Relaxed, for the same reason.
  std::atomic<uint64_t> low_{0}, high_{0};
};

// Returns whether all of [address, address + bytes) is mapped, with whatever rights.
bool is_mapped(uint64_t address, uint64_t bytes) noexcept;

// Maps page-aligned memory at an address that is likely to be free at the server, too. Returns null if there is no
// memory. `file` is the file to map, shared; -1 stands for private memory.
void* map_pinned(size_t mapped_bytes, int file = -1) noexcept;

// Makes whole pages that this process and the server's have both mapped, at the same address, and that the device
// reaches. Otherwise `memory` is null: the server is on another machine, has no room for them
// (CUDA_ERROR_OUT_OF_MEMORY), or cannot have them, or a connection was lost meanwhile (CUDA_ERROR_NOT_FOUND), so that
// the next attempt may succeed.
CUresult share_pages(const Caller& caller, size_t mapped_bytes, void*& memory) noexcept;
// Releases pages of share_pages() at both sides.
void unshare_pages(const Caller& caller, void* memory, size_t mapped_bytes) noexcept;
// Returns whether the session meets the conditions of shared pages: a connection that carries descriptors, to a server
// on this machine.
bool can_share_pages(const Caller& caller) noexcept;

// Makes pinned memory that a call uses as a device pointer a region, and sends its content. Returns an error if the
// device cannot reach the memory; CUDA_ERROR_OUT_OF_MEMORY if there is no memory for it.
CUresult reach_pinned(const AddressRange& pinned) noexcept;

}  // namespace gpuwire::client
