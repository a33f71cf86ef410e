// Memory that the program has freed and that the client keeps for a moment: an allocation of the same size is answered
// with it, at once.
//
// To the server's driver a kept block is allocated. Nothing that the program does may tell: an address in one is as
// unknown here as any that was freed; what takes memory, or tells how much there is, comes behind the blocks' being
// given back (`minds_kept_memory` in protocol/api, and here); so does what names such an address, for the server's
// driver has to refuse it. Others get the memory soon: a block that nobody has had a use for in kKeptTime is given
// back.
#pragma once

#include <cuda.h>

#include <atomic>
#include <chrono>
#include <cstddef>
#include <cstdint>
#include <mutex>
#include <span>

#include "client_stub/driver/memory/kept_blocks.hpp"
#include "client_stub/driver/session/session_part.hpp"

namespace gpuwire::client {

class ServerSession;
struct Caller;
struct ContextState;

// Any thread. `giving_` is held while frames are sent, so that whoever finds no block knows that their frees are sent;
// `mutex_` is a leaf.
class KeptMemory final : public SessionPart {
 public:
  using Clock = KeptBlock::Clock;

  // As the server counts on when others of the tenant wait for memory (kKeptMemoryWait, kMemoryShortage).
  static constexpr std::chrono::milliseconds kKeptTime{200};
  static constexpr uint64_t kBlockBytesMax = 32u << 20;

  KeptMemory(ServerSession& session, SessionParts& parts) noexcept;
  ~KeptMemory() override;

  // --- for allocations and frees -----------------------------------------------------------------------------------

  // A kept block becomes the program's again. False: there is none.
  bool take(const Caller& caller, const BlockUse& use, CUdeviceptr* out);
  // cuMemFree of device memory. False: it is to be freed as ever; else `result` is the call's.
  bool keep(const Caller& caller, const AddressRange& range, CUresult& result);
  // cuMemFreeAsync of a pool's memory, in the order of this stream.
  bool keep_in_order(const Caller& caller, const AddressRange& range, uint64_t wire_stream, CUresult& result);

  bool any() const noexcept { return high_.load(std::memory_order_relaxed) != 0; }

  // --- giving back -------------------------------------------------------------------------------------------------

  // All of it. Memory of a stream that the program knows to be at rest goes back to the device, as natively by then.
  // False: nothing has been kept for a while.
  bool give_back(const Caller& caller) noexcept {
    if (!keeping()) [[likely]]
      return false;
    give_back_all(caller);
    return true;
  }
  // What is kept in the order of streams: of this one, which ends; of all, since one begins to capture.
  void give_back_of_stream(uint64_t wire_stream) noexcept;
  void give_back_of_streams() noexcept;
  // The context is about to end: what pools have lent it, they have back. Then, when it is marked dead: its blocks go
  // with it.
  void give_back_of(const ContextState& context) noexcept;
  void forget(const ContextState& context) noexcept;
  // What was not used for long. Gives how long until there may be more to do; the session's own thread.
  std::chrono::nanoseconds look(Clock::time_point now) noexcept;

  // Addresses that a call is going to name: a block there is given back first.
  void look_at(uint64_t address) noexcept {
    if (may_hold(address)) [[unlikely]]
      give_back_at(address);
  }
  void look_through(std::span<const std::byte> arguments) noexcept {
    if (any()) [[unlikely]]
      look_closely(arguments);
  }

  // --- what the program knows of pools -----------------------------------------------------------------------------

  // It looks at how much a pool has, or has had at most. From now on what is kept makes no pool larger than natively:
  // an allocation that finds nothing kept comes behind all frees.
  void pools_are_watched() noexcept { pools_watched_.store(true, std::memory_order_relaxed); }
  // A device has another pool than it had: of which one allocations without a name are is no longer known.
  void device_pool_changes() noexcept { device_pools_changed_.store(true, std::memory_order_relaxed); }
  void nothing_found(const Caller& caller) noexcept {
    if (pools_watched_.load(std::memory_order_relaxed)) give_back(caller);
  }

  void ended(SessionEnd) noexcept override {}  // nothing can be sent; the addresses stay taken
  void after_fork_in_child() noexcept override;

  // A size (protocol/units); nothing: none. What is no size is told on standard error, and none is kept.
  static uint64_t bytes_wanted(const char* text) noexcept;

 private:
  bool may_hold(uint64_t address) const noexcept {
    return address >= low_.load(std::memory_order_relaxed) && address < high_.load(std::memory_order_relaxed);
  }
  bool keeping() const noexcept { return next_look_.load(std::memory_order_relaxed) != 0; }
  bool usable(const Caller& caller, const AddressRange& range) const noexcept;
  bool has_room(uint64_t bytes) noexcept;
  // The frame in the place of cuMemFree. False: the memory cannot be kept just now.
  bool await_rest(const Caller& caller) noexcept;
  // Takes the range from the map and keeps it. False: it is not there any more. `result`: where it could not be kept,
  // it has been freed.
  bool put(const Caller& caller, const AddressRange& range, const BlockUse& use, CUresult& result);
  bool insert(const KeptBlock& block, const ContextState& context) noexcept;
  void begin_keeping() noexcept;

  void give_back_all(const Caller& caller) noexcept;
  void give_back_at(uint64_t address) noexcept;
  void look_closely(std::span<const std::byte> arguments) noexcept;
  // Takes out what is chosen and sends its frees.
  template <class Choose>
  void give_back_if(Choose&& choose) noexcept;
  // Under giving_.
  template <class Choose>
  void send_back(Choose&& choose) noexcept;
  CUresult send_free(const KeptBlock& block) noexcept;
  void note_bounds() noexcept;  // under mutex_

  ServerSession& session_;
  const uint64_t bytes_max_;
  std::mutex giving_;
  std::mutex mutex_;  // all below
  KeptBlocks blocks_;
  // The server was told that memory may be kept. Written with giving_ held, too.
  bool keeping_ = false;

  // Bounds of all blocks. Written under the lock. Relaxed: who names an address of a block that is kept by then has
  // synchronised with whoever freed it.
  std::atomic<uint64_t> low_{0}, high_{0};
  // When blocks have to be looked at next, of Clock; 0: not keeping_. Written under mutex_. Relaxed: who has kept a
  // block, or freed it, before another thread's call has synchronised with that.
  std::atomic<Clock::rep> next_look_{0};
  // Set once, by a call whose effect on others the program has to order itself: relaxed.
  std::atomic<bool> pools_watched_{false}, device_pools_changed_{false};
};

}  // namespace gpuwire::client
