// Cached device memory: free memory that the client keeps for a moment. An allocation of the same size gets it at once.
// It consists of blocks that the program has freed, and of prefetched blocks: for a program that allocates several
// blocks of a size one after the other, and for the first allocations of its earlier runs.
//
// To the server's driver a cached block is allocated. The program must not notice it. An address in a cached block is
// as unknown here as that of any freed block. A call that takes memory, or reports its amount, comes behind the release
// of the blocks (`releases_cached_memory` in protocol/api, and here). A call that names such an address does so too:
// the server's driver has to refuse it. Other sessions get the memory soon: a block without a use for kCachedTime is
// released, and a block of earlier runs after kProfiledTime.
//
// The driver's cuMemFree waits for all work of its context, and its cuMemAlloc may. The program's work may depend on a
// later action of the program, so both are sent only where the program itself calls one of them. Everywhere else blocks
// are released by free_at_rest: the server frees them if there is no work to wait for, and reports the result; until
// then the blocks *leave*, and belong to nobody. Memory of pools is freed in stream order, which waits for nothing.
#pragma once

#include <cuda.h>

#include <atomic>
#include <chrono>
#include <cstddef>
#include <cstdint>
#include <span>
#include <vector>

#include "client_stub/driver/state/memory/prefetch_demand.hpp"
#include "client_stub/driver/state/memory/cached_blocks.hpp"
#include "client_stub/driver/state/memory/profiled_demand.hpp"
#include "client_stub/driver/state/session/session_part.hpp"
#include "protocol/threads/mutex.hpp"

namespace gpuwire::client {

class ServerSession;
struct Caller;
struct ContextState;

// Any thread. `giving_` and `profiled_mutex_` are held while frames are sent. The bounds and keeping(), which are read
// without them, change behind the frees. So a thread that reads from them that there is no block can rely on the
// block's free being sent. A thread that searches for a block and finds none can rely on it after it has held
// `giving_`. `mutex_` is a leaf.
class CachedMemory final : public SessionPart {
 public:
  using Clock = CachedBlock::Clock;

  // The time after which an unused block is released. The server relies on it when others of the tenant wait for memory
  // (kCachedMemoryWait, kMemoryShortage).
  static constexpr std::chrono::milliseconds kCachedTime{200};
  // The same time for a block of earlier runs: between two allocations a program that starts loads libraries. The
  // server's kAheadHeld relies on it.
  static constexpr std::chrono::milliseconds kProfiledTime{2000};
  static constexpr uint64_t kBlockBytesMax = 32u << 20;
  // The bound if GPUWIRE_KEPT_MEMORY sets none.
  static constexpr uint64_t kBytesUsual = 64u << 20;

  CachedMemory(ServerSession& session, SessionParts& parts) noexcept;
  ~CachedMemory() override;

  // --- for allocations and frees -----------------------------------------------------------------------------------

  // Gives a cached block to the program again. Returns false if there is none.
  bool take(const Caller& caller, const BlockUse& use, CUdeviceptr* out);
  // Called before a request for an allocation that take() could not serve. First requests the allocations of earlier
  // runs of the program. The answer to the program's own request comes after those, so that the next allocation finds
  // its block.
  void misses(const Caller& caller, const BlockUse& use) noexcept {
    if (bytes_max_ != 0 && !first_while_over_.load(std::memory_order_relaxed)) prefetch_profiled(caller, use);
  }
  // Notes that the server has served the request, and may prefetch more blocks of this use.
  void missed(const Caller& caller, const BlockUse& use) noexcept {
    if (bytes_max_ == 0) return;
    note_new(caller, use);
    prefetch(caller, use, true);
  }
  // Caches device memory of a cuMemFree. Returns false if the memory has to be freed as usual; otherwise `result` is
  // the call's.
  bool keep(const Caller& caller, const AddressRange& range, CUresult& result);
  // Caches a pool's memory of a cuMemFreeAsync, in the order of this stream.
  bool keep_in_order(const Caller& caller, const AddressRange& range, uint64_t wire_stream, CUresult& result);

  bool any() const noexcept { return high_.load(std::memory_order_relaxed) != 0; }
  // Returns false if no block is cached, and the frees of all former blocks are sent.
  bool keeping() const noexcept { return next_poll_.load(std::memory_order_relaxed) != 0; }

  // Returns the plain memory of the program's device in cached blocks of at least kWholeBytes, in whole units: the
  // amount that a release would make free. The driver puts several smaller blocks into one unit.
  static constexpr uint64_t kWholeBytes = 2u << 20;
  uint64_t whole_bytes(int device) const noexcept;

  // --- giving back -------------------------------------------------------------------------------------------------

  // Releases all blocks, as far as that waits for no work. Memory of a stream that the program knows to be idle is
  // returned to the device, as it has been natively by then.
  void give_back(const Caller& caller) noexcept {
    if (keeping()) [[unlikely]]
      give_back_at_rest(caller, [](const CachedBlock&) { return true; });
  }
  // Releases blocks that cannot be added to the driver's figures (whole_bytes()).
  void give_back_but_whole(const Caller& caller) noexcept {
    if (keeping()) [[unlikely]]
      give_back_at_rest(caller, [](const CachedBlock& block) { return block.range.bytes < kWholeBytes; });
  }
  // Releases all blocks except those of earlier runs, for a call that repeats itself after it has found no memory
  // (free_all).
  void give_back_but_profiled(const Caller& caller) noexcept {
    if (keeping()) [[unlikely]]
      give_back_at_rest(caller, [](const CachedBlock& block) { return !block.known; });
  }
  // Releases all blocks for a call that has found no memory. Returns false if no block has been cached for a while.
  bool free_all(const Caller& caller) noexcept;
  // Release blocks in the order of streams: those of this stream, which ends, or all of them, because a stream begins
  // to capture.
  void give_back_of_stream(uint64_t wire_stream) noexcept;
  void give_back_of_streams() noexcept;
  // End the blocks of a context: first, before its end, pools get their blocks back; then, when the context is marked
  // dead, its other blocks are dropped.
  void give_back_of(const ContextState& context) noexcept;
  void forget(const ContextState& context) noexcept;
  // Releases blocks that were unused for long. Returns the time until the next call is due. Thread: the session's own.
  std::chrono::nanoseconds poll(Clock::time_point now) noexcept;

  // Frees a block at an address that a call names, so that the server's driver treats the address as usual. If blocks
  // were requested, the server may have put one there by now.
  void scan_address(uint64_t address) noexcept {
    if (asked_.load(std::memory_order_relaxed)) [[unlikely]]
      await_asked(address);
    if (may_hold(address)) [[unlikely]]
      free_at(address);
  }
  // Releases blocks at possible addresses, such as the parameters of a kernel, as far as that waits for no work.
  void scan_words(std::span<const std::byte> arguments) noexcept {
    if (any()) [[unlikely]]
      scan_closely(arguments);
  }

  // --- notices of the server, on the thread that reads the connection -----------------------------------------------

  void freed_at_rest(uint64_t sequence, bool freed) noexcept;
  void allocated_ahead(uint64_t sequence, std::span<const uint64_t> addresses) noexcept;

  // --- the program's view of pools ----------------------------------------------------------------------------------

  // Notes that the program reads the size of a pool, or its high-water mark. From now on cached blocks make no pool
  // larger than natively: an allocation without a cached block is sent after all frees.
  void pools_are_watched() noexcept { pools_watched_.store(true, std::memory_order_relaxed); }
  // Notes that a device has got another pool. The pool of allocations without a name is no longer known.
  void device_pool_changes() noexcept { device_pools_changed_.store(true, std::memory_order_relaxed); }
  bool device_pools_changed() const noexcept { return device_pools_changed_.load(std::memory_order_relaxed); }
  void nothing_found(const Caller& caller) noexcept {
    if (pools_watched_.load(std::memory_order_relaxed) && keeping()) give_back_in_order(caller);
  }

  // Nothing can be sent; the addresses stay taken.
  void ended(SessionEnd how) noexcept override;
  void after_fork_in_child() noexcept override WITHOUT_LOCK_CHECK;

  // Reads a size (protocol/units); empty: kBytesUsual. An invalid size is reported on standard error, and no block is
  // cached.
  static uint64_t bytes_wanted(const char* text) noexcept;

 private:
  bool may_hold(uint64_t address) const noexcept {
    return address >= low_.load(std::memory_order_relaxed) && address < high_.load(std::memory_order_relaxed);
  }
  bool usable(const Caller& caller, const AddressRange& range) const noexcept;
  bool has_room(uint64_t bytes) noexcept;
  // Returns whether the session's server can cache memory, and the context has all of its device.
  bool possible(const Caller& caller) const noexcept;
  // Sends the frame in place of cuMemFree. Returns false if the memory cannot be cached now.
  bool await_rest(const Caller& caller) noexcept;
  // Moves the range from the map to the cache. Returns false if it is no longer in the map. If it could not be cached,
  // it has been freed, with `result`.
  bool put(const Caller& caller, const AddressRange& range, const BlockUse& use, CUresult& result);
  bool insert(const CachedBlock& block, const ContextState& context) noexcept;
  void begin_keeping() noexcept;

  // --- ahead
  struct Ask {
    uint64_t sequence = 0;
    // Handle.
    uint64_t context = 0;
    // The sizes of blocks, in bytes.
    std::vector<uint64_t> sizes;
    // The sizes are those of earlier runs of the program.
    bool known = false;
  };
  void prefetch(const Caller& caller, const BlockUse& use, bool missed) noexcept;
  uint32_t count_prefetched(const BlockUse& use, bool missed) REQUIRES(mutex_);
  // Returns the number of further blocks for which there is room.
  size_t prefetch_places() const noexcept REQUIRES(mutex_);
  // Returns the requested bytes, except those of earlier runs.
  uint64_t asked_bytes() const noexcept REQUIRES(mutex_);
  // Returns the number of requested blocks of this use, or of all uses for null.
  size_t asked_blocks(const BlockUse* use) const noexcept REQUIRES(mutex_);
  // Returns the sizes of blocks of earlier runs, including requested ones.
  std::vector<uint64_t> profiled_here(const Caller& caller) const REQUIRES(mutex_);
  // Keeps as many of the sizes, from the first on, as there is room for, also beside blocks that leave.
  void fit_profiled(std::vector<uint64_t>& sizes) const noexcept REQUIRES(mutex_);
  // Notes a request. Called by a `post` of the frame, under the send lock; the reply may come as soon as the lock is
  // released.
  void note_asked(Ask& ask);
  void prefetch_profiled(const Caller& caller, const BlockUse& use) noexcept;
  // Notes a block that the program did not have before.
  void note_new(const Caller& caller, const BlockUse& use) noexcept;
  void insert_prefetched(const Ask& ask, uint64_t bytes, uint64_t address) noexcept;

  // --- giving back
  void give_back_at_rest(const Caller& caller, bool (*choose)(const CachedBlock&)) noexcept;
  void give_back_in_order(const Caller& caller) noexcept;
  bool may_wait() noexcept;
  void await_asked(uint64_t address) noexcept;
  void free_at(uint64_t address) noexcept;
  void scan_closely(std::span<const std::byte> arguments) noexcept;
  // Waits until the frees of removed blocks are sent.
  void await_sends() noexcept;
  // Waits until the server has answered all frames in flight. Called only where a call of the program may wait.
  void await_answers() noexcept;
  // Returns the streams with cached memory that are idle, as far as the program knows.
  std::vector<BlockUse> rested_streams();
  void synchronise(const Caller& caller, const std::vector<BlockUse>& streams) noexcept;
  // Removes the chosen blocks, except leaving ones, and sends their frees.
  template <class Choose>
  void give_back_if(Choose&& choose) noexcept;
  template <class Choose>
  void send_back(Choose&& choose) noexcept REQUIRES(giving_);
  // Makes the chosen blocks of plain memory leave.
  template <class Choose>
  void send_at_rest(Choose&& choose) noexcept REQUIRES(giving_);
  CUresult send_free(const CachedBlock& block) noexcept;
  void note_bounds() noexcept REQUIRES(mutex_);

  ServerSession& session_;
  const uint64_t bytes_max_;
  Mutex profiled_mutex_;
  ProfiledDemand known_ GUARDED_BY(profiled_mutex_);
  Mutex giving_;
  mutable Mutex mutex_;
  CachedBlocks blocks_ GUARDED_BY(mutex_);
  PrefetchDemand demand_ GUARDED_BY(mutex_);
  // The requests without an answer (allocate_ahead, allocate_known); few.
  std::vector<Ask> asks_ GUARDED_BY(mutex_);
  // The first byte of the blocks whose frees are being sent, and the byte behind their last; 0: there are none.
  uint64_t sending_low_ GUARDED_BY(mutex_) = 0, sending_high_ GUARDED_BY(mutex_) = 0;
  // The server was notified that memory may be cached. Written with giving_ held, too.
  bool keeping_ GUARDED_BY(mutex_) = false;

  // Bounds of all blocks, and of those whose frees are being sent. Written under the lock. Relaxed: a thread that names
  // an address of a cached block has synchronised with the thread that freed it.
  std::atomic<uint64_t> low_{0}, high_{0};
  // The time of the next check of the blocks, of Clock; 0: not keeping_. Written under mutex_. Relaxed: a thread that
  // has cached or freed a block before another thread's call has synchronised with that call.
  std::atomic<Clock::rep> next_poll_{0};
  // Whether asks_ has any. Written under mutex_; relaxed, as the bounds.
  std::atomic<bool> asked_{false};
  // known_.over(). Set once. Relaxed: a thread that does not see it yet asks known_.
  std::atomic<bool> first_while_over_{false};
  // Set once, by a call whose effect on others the program has to order itself: relaxed.
  std::atomic<bool> pools_watched_{false}, device_pools_changed_{false};
};

}  // namespace gpuwire::client
