// Device memory that is free, and that the client keeps for a moment: an allocation of the same size is answered with
// it, at once. It is what the program has freed, and what was allocated ahead of it: where it has allocated several
// blocks of a size one after the other, and what earlier runs of it have allocated in their first while.
//
// To the server's driver a kept block is allocated. Nothing that the program does may tell: an address in one is as
// unknown here as any that was freed; what takes memory, or tells how much there is, comes behind the blocks' being
// given back (`minds_kept_memory` in protocol/api, and here); so does what names such an address, for the server's
// driver has to refuse it. Others get the memory soon: a block that nobody has had a use for in kKeptTime is given
// back, and in kKnownTime one that earlier runs of the program had.
//
// The driver's cuMemFree waits for all work of its context, and its cuMemAlloc may. The program's work may go on only
// when the program does something else first, so both are only sent where the program itself calls one of them.
// Anywhere else blocks are given back by free_at_rest: the server frees them if there is no work to wait for, and says
// whether it has; till then they *leave*, and are nobody's. Memory of pools is freed in stream order, which waits for
// nothing.
#pragma once

#include <cuda.h>

#include <atomic>
#include <chrono>
#include <cstddef>
#include <cstdint>
#include <mutex>
#include <span>
#include <vector>

#include "client_stub/driver/memory/ahead_demand.hpp"
#include "client_stub/driver/memory/kept_blocks.hpp"
#include "client_stub/driver/memory/known_demand.hpp"
#include "client_stub/driver/session/session_part.hpp"

namespace gpuwire::client {

class ServerSession;
struct Caller;
struct ContextState;

// Any thread. `giving_` and `known_mutex_` are held while frames are sent; the bounds and keeping(), which are read
// without it, change behind the frees. So whoever finds by these that there is no block knows that its free is sent,
// and whoever looks for one and finds none does when it has held `giving_`. `mutex_` is a leaf.
class KeptMemory final : public SessionPart {
 public:
  using Clock = KeptBlock::Clock;

  // As the server counts on when others of the tenant wait for memory (kKeptMemoryWait, kMemoryShortage).
  static constexpr std::chrono::milliseconds kKeptTime{200};
  // Between two allocations a program that begins loads libraries. The server's kAheadHeld counts on it.
  static constexpr std::chrono::milliseconds kKnownTime{2000};
  static constexpr uint64_t kBlockBytesMax = 32u << 20;
  // Where GPUWIRE_KEPT_MEMORY does not say.
  static constexpr uint64_t kBytesUsual = 64u << 20;

  KeptMemory(ServerSession& session, SessionParts& parts) noexcept;
  ~KeptMemory() override;

  // --- for allocations and frees -----------------------------------------------------------------------------------

  // A kept block becomes the program's again. False: there is none.
  bool take(const Caller& caller, const BlockUse& use, CUdeviceptr* out);
  // The server is about to be asked for what take() has not got: in front of that, for what earlier runs of the program
  // have allocated, too. The answer to the program's own comes when those are here, so that the next one finds its own.
  void misses(const Caller& caller, const BlockUse& use) noexcept {
    if (bytes_max_ != 0 && !first_while_over_.load(std::memory_order_relaxed)) look_ahead_as_known(caller, use);
  }
  // The server has allocated it: it may be asked for more of these ahead.
  void missed(const Caller& caller, const BlockUse& use) noexcept {
    if (bytes_max_ == 0) return;
    note_new(caller, use);
    look_ahead(caller, use, true);
  }
  // cuMemFree of device memory. False: it is to be freed as ever; else `result` is the call's.
  bool keep(const Caller& caller, const AddressRange& range, CUresult& result);
  // cuMemFreeAsync of a pool's memory, in the order of this stream.
  bool keep_in_order(const Caller& caller, const AddressRange& range, uint64_t wire_stream, CUresult& result);

  bool any() const noexcept { return high_.load(std::memory_order_relaxed) != 0; }
  // False: nothing is kept, and the frees of all that was are sent.
  bool keeping() const noexcept { return next_look_.load(std::memory_order_relaxed) != 0; }

  // --- giving back -------------------------------------------------------------------------------------------------

  // All of it, as far as that waits for no work. Memory of a stream that the program knows to be at rest goes back to
  // the device, as natively by then.
  void give_back(const Caller& caller) noexcept {
    if (keeping()) [[unlikely]]
      give_back_at_rest(caller, [](const KeptBlock&) { return true; });
  }
  // The same for a call that comes again by itself when it has found no memory (free_all): what earlier runs of the
  // program had stays.
  void give_back_but_known(const Caller& caller) noexcept {
    if (keeping()) [[unlikely]]
      give_back_at_rest(caller, [](const KeptBlock& block) { return !block.known; });
  }
  // All of it, for a call that has found no memory. False: nothing has been kept for a while.
  bool free_all(const Caller& caller) noexcept;
  // What is kept in the order of streams: of this one, which ends; of all, since one begins to capture.
  void give_back_of_stream(uint64_t wire_stream) noexcept;
  void give_back_of_streams() noexcept;
  // The context is about to end: what pools have lent it, they have back. Then, when it is marked dead: its blocks go
  // with it.
  void give_back_of(const ContextState& context) noexcept;
  void forget(const ContextState& context) noexcept;
  // What was not used for long. Gives how long until there may be more to do; the session's own thread.
  std::chrono::nanoseconds look(Clock::time_point now) noexcept;

  // An address that a call names: a block there is freed first, so that the server's driver judges as ever. Where
  // blocks were asked for ahead, the server may have put one there by now.
  void look_at(uint64_t address) noexcept {
    if (asked_.load(std::memory_order_relaxed)) [[unlikely]]
      await_asked(address);
    if (may_hold(address)) [[unlikely]]
      free_at(address);
  }
  // What may be addresses, such as parameters of a kernel: blocks there are given back first, as far as that waits for
  // no work.
  void look_through(std::span<const std::byte> arguments) noexcept {
    if (any()) [[unlikely]]
      look_closely(arguments);
  }

  // --- what the server tells. By the thread that reads the connection ----------------------------------------------

  void freed_at_rest(uint64_t sequence, bool freed) noexcept;
  void allocated_ahead(uint64_t sequence, std::span<const uint64_t> addresses) noexcept;

  // --- what the program knows of pools -----------------------------------------------------------------------------

  // It looks at how much a pool has, or has had at most. From now on what is kept makes no pool larger than natively:
  // an allocation that finds nothing kept comes behind all frees.
  void pools_are_watched() noexcept { pools_watched_.store(true, std::memory_order_relaxed); }
  // A device has another pool than it had: of which one allocations without a name are is no longer known.
  void device_pool_changes() noexcept { device_pools_changed_.store(true, std::memory_order_relaxed); }
  void nothing_found(const Caller& caller) noexcept {
    if (pools_watched_.load(std::memory_order_relaxed) && keeping()) give_back_in_order(caller);
  }

  void ended(SessionEnd how) noexcept override;  // nothing can be sent; the addresses stay taken
  void after_fork_in_child() noexcept override;

  // A size (protocol/units); nothing: kBytesUsual. What is no size is told on standard error, and none is kept.
  static uint64_t bytes_wanted(const char* text) noexcept;

 private:
  bool may_hold(uint64_t address) const noexcept {
    return address >= low_.load(std::memory_order_relaxed) && address < high_.load(std::memory_order_relaxed);
  }
  bool usable(const Caller& caller, const AddressRange& range) const noexcept;
  bool has_room(uint64_t bytes) noexcept;
  // The session's server knows how to keep memory, and the context has all of its device.
  bool possible(const Caller& caller) const noexcept;
  // The frame in the place of cuMemFree. False: the memory cannot be kept just now.
  bool await_rest(const Caller& caller) noexcept;
  // Takes the range from the map and keeps it. False: it is not there any more. `result`: where it could not be kept,
  // it has been freed.
  bool put(const Caller& caller, const AddressRange& range, const BlockUse& use, CUresult& result);
  bool insert(const KeptBlock& block, const ContextState& context) noexcept;
  void begin_keeping() noexcept;

  // --- ahead
  struct Ask {
    uint64_t sequence = 0;
    uint64_t context = 0;         // handle
    std::vector<uint64_t> sizes;  // of blocks, in bytes
    bool known = false;           // as earlier runs of the program had them
  };
  void look_ahead(const Caller& caller, const BlockUse& use, bool missed) noexcept;
  uint32_t count_ahead(const BlockUse& use, bool missed);        // under mutex_
  size_t places_ahead() const noexcept;                          // under mutex_; for so many more
  uint64_t asked_bytes() const noexcept;                         // under mutex_; but for those that are known
  size_t asked_blocks(const BlockUse* use) const noexcept;       // under mutex_; null: of all
  std::vector<uint64_t> known_here(const Caller& caller) const;  // under mutex_; sizes, those on their way included
  // Under mutex_. Leaves as many of the sizes, from the first on, as there is room for, also beside blocks that leave.
  void fit_known(std::vector<uint64_t>& sizes) const noexcept;
  // Called by a `post` of the frame, under the send lock; the reply may come as soon as that is given up.
  void note_asked(Ask& ask);
  void look_ahead_as_known(const Caller& caller, const BlockUse& use) noexcept;
  // The program has a block now that was none of its own before.
  void note_new(const Caller& caller, const BlockUse& use) noexcept;
  void insert_ahead(const Ask& ask, uint64_t bytes, uint64_t address) noexcept;

  // --- giving back
  void give_back_at_rest(const Caller& caller, bool (*choose)(const KeptBlock&)) noexcept;
  void give_back_in_order(const Caller& caller) noexcept;
  void await_asked(uint64_t address) noexcept;
  void free_at(uint64_t address) noexcept;
  void look_closely(std::span<const std::byte> arguments) noexcept;
  // Waits until the frees of what is no longer found are sent.
  void await_sends() noexcept;
  // Waits until the server has answered what is on its way. Only where a call of the program's may wait.
  void await_answers() noexcept;
  // Streams with kept memory that are at rest, as far as the program knows.
  std::vector<BlockUse> rested_streams();
  void synchronise(const Caller& caller, const std::vector<BlockUse>& streams) noexcept;
  // Takes out what is chosen, of what does not leave, and sends its frees.
  template <class Choose>
  void give_back_if(Choose&& choose) noexcept;
  // Under giving_.
  template <class Choose>
  void send_back(Choose&& choose) noexcept;
  // Under giving_. What is chosen, of plain memory, leaves.
  template <class Choose>
  void send_at_rest(Choose&& choose) noexcept;
  CUresult send_free(const KeptBlock& block) noexcept;
  void note_bounds() noexcept;  // under mutex_

  ServerSession& session_;
  const uint64_t bytes_max_;
  std::mutex known_mutex_;
  KnownDemand known_;
  std::mutex giving_;
  std::mutex mutex_;  // all below
  KeptBlocks blocks_;
  AheadDemand demand_;
  std::vector<Ask> asks_;  // allocate_ahead and allocate_known that no answer has come to; few
  // Of the blocks whose frees are being sent, the first byte and what is behind the last; 0: there are none.
  uint64_t sending_low_ = 0, sending_high_ = 0;
  // The server was told that memory may be kept. Written with giving_ held, too.
  bool keeping_ = false;

  // Bounds of all blocks, and of those whose frees are being sent. Written under the lock. Relaxed: who names an
  // address of a block that is kept by then has synchronised with whoever freed it.
  std::atomic<uint64_t> low_{0}, high_{0};
  // When blocks have to be looked at next, of Clock; 0: not keeping_. Written under mutex_. Relaxed: who has kept a
  // block, or freed it, before another thread's call has synchronised with that.
  std::atomic<Clock::rep> next_look_{0};
  // Whether asks_ has any. Written under mutex_; relaxed, as the bounds.
  std::atomic<bool> asked_{false};
  // known_.over(). Set once; relaxed: who does not see it yet asks known_.
  std::atomic<bool> first_while_over_{false};
  // Set once, by a call whose effect on others the program has to order itself: relaxed.
  std::atomic<bool> pools_watched_{false}, device_pools_changed_{false};
};

}  // namespace gpuwire::client
