// Memory by way of which pageable memory is copied where client and server are on one machine: blocks that both
// processes have mapped, and that the server has registered with its driver. The CPU copies each byte once, here, and
// the device reads or writes the block where it is.
#pragma once

#include <array>
#include <atomic>
#include <chrono>
#include <cstddef>
#include <cstdint>

#include "client_stub/driver/state/call/caller.hpp"
#include "client_stub/driver/state/session/session_part.hpp"
#include "protocol/threads/condition.hpp"
#include "protocol/threads/mutex.hpp"

namespace gpuwire::client {

// Large enough that the cost of frames is small, and a large page. Small enough that CPU and device work at the same
// time, and that bytes are still in the cache when the other side reads them.
inline constexpr size_t kStagingBlockBytes = 2u << 20;
// The bounds of a session's blocks, and of those that one of several contexts has made.
inline constexpr size_t kStagingBlocksMax = 32, kStagingBlocksOfOneMax = 8;
// This many blocks for each copy keep device and CPU busy. A copy whose caller waits for its end anyway makes no more.
inline constexpr size_t kStagingBlocksInTurn = 4;
// A copy of at least this size has new blocks made. A shorter one uses the existing blocks, unless its bytes fit a
// posted frame.
inline constexpr size_t kStagingMadeForBytes = 1u << 20;
// No more blocks are requested after this many blocks were lost with their connection.
inline constexpr unsigned kStagingLossesMax = 16;
// How long a copy waits for a block while none comes back: a stream may stand until the program has gone on.
inline constexpr std::chrono::milliseconds kStagingPatience{50};
// Threads that help to copy, of one session.
inline constexpr unsigned kMemcpyHelpersMax = 2;

// Counters for --stats; relaxed, read when the program ends.
struct StagedTraffic {
  std::atomic<uint64_t> to_device_bytes{0}, from_device_bytes{0};
};

// The blocks of one session. A block belongs to the context in which it was made, and is used for copies in the streams
// of that context, so that none is in use any more when its context has ended. Any thread; one leaf lock.
class SharedStaging final : public SessionPart {
 public:
  explicit SharedStaging(SessionParts& parts) noexcept : SessionPart(parts) {}

  // May copies in this stream go this way at all?
  bool is_usable(const Caller& caller, uint64_t stream) const noexcept;

  static constexpr int kNone = -1;
  // A block that is the caller's from now on. kNone: there is none, and none can be had. `may_make`: asks the server
  // for another one, if need be.
  int take(const Caller& caller, bool may_make) noexcept;
  // Without the lock: only the block's taker asks, and nothing else changes a taken block.
  std::byte* data(int block) const noexcept WITHOUT_LOCK_CHECK { return blocks_[size_t(block)].data; }
  void give_back(int block) noexcept;
  // The device reads it: it comes back when that is over. Before the frame leaves.
  void lend(int block, uint64_t sequence) noexcept;
  // A notice: the frame has been executed.
  void has_read(uint64_t sequence) noexcept;
  // The number of returned blocks, to be read before take(). And: waits until there are more. False: the session is
  // over, or no block returned within kStagingPatience of the last wait.
  uint64_t returns() const noexcept { return returns_.load(std::memory_order_relaxed); }
  bool await_return(const Caller& caller, uint64_t before) noexcept;

  // Copies that are under way: begins one, ends one. And: is it enough to use the blocks that there are in turn?
  void copy_begins() noexcept { copies_.fetch_add(1, std::memory_order_relaxed); }
  void copy_ends() noexcept { copies_.fetch_sub(1, std::memory_order_relaxed); }
  bool has_enough() const noexcept {
    return blocks() >= kStagingBlocksInTurn * copies_.load(std::memory_order_relaxed);
  }

  // Up to `most` threads to copy with; give_helpers() when they have ended.
  unsigned take_helpers(unsigned most) noexcept;
  void give_helpers(unsigned count) noexcept { helpers_.fetch_add(count, std::memory_order_relaxed); }

  // The program was refused memory of the server's, of which these blocks are a part: those that are free end, and no
  // more are made. False: none was free.
  bool make_room(const Caller& caller) noexcept;
  // The context is about to end at the server: so do its blocks, those in use when they come back.
  void forget(const Caller& caller, uint64_t context) noexcept;
  StagedTraffic& traffic() noexcept { return traffic_; }
  size_t blocks() const noexcept;

  void ended(SessionEnd how) noexcept override;
  void after_fork_in_child() noexcept override {}  // has no part of the blocks, and nobody there asks

 private:
  enum class State : uint8_t { absent, making, free, taken, lent };
  struct Block {
    std::byte* data = nullptr;
    // In which it was made; 0: its context has ended, and it is to go.
    uint64_t context = 0;
    uint64_t sequence = 0;
    State state = State::absent;
    // When it came back last, by freed_: the newest is the warmest.
    uint64_t freed = 0;
  };

  int find_free(uint64_t context) noexcept REQUIRES(mutex_);
  int reserve(const Caller& caller) noexcept REQUIRES(mutex_);
  void release(Block& block) noexcept REQUIRES(mutex_);
  void unmap(Block& block) noexcept REQUIRES(mutex_);
  // Without the lock: ends blocks that are to go. False: none was free.
  bool drop_forgotten(const Caller& caller) noexcept;

  mutable Mutex mutex_;
  Condition changed_;
  std::array<Block, kStagingBlocksMax> blocks_ GUARDED_BY(mutex_);
  uint64_t freed_ GUARDED_BY(mutex_) = 0;
  // The server has none to give, or other use for it.
  bool refused_ GUARDED_BY(mutex_) = false;
  // Blocks that were lost on their way to the server.
  unsigned losses_ GUARDED_BY(mutex_) = 0;
  // There may be blocks whose context has ended.
  bool forgotten_ GUARDED_BY(mutex_) = false;
  bool ended_ GUARDED_BY(mutex_) = false;
  // The number of returned blocks, and its value at the end of the last wait without success. Written under the lock.
  // Relaxed: a reader of the number takes the lock for the block.
  std::atomic<uint64_t> returns_{0}, starved_{~uint64_t{0}};
  // Blocks that there are; a hint.
  std::atomic<size_t> count_{0};
  // Under way; a hint.
  std::atomic<size_t> copies_{0};
  // The helper threads that no copy has; a counter alone.
  std::atomic<unsigned> helpers_{kMemcpyHelpersMax};
  StagedTraffic traffic_;
};

}  // namespace gpuwire::client
