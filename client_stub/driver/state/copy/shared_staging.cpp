#include "client_stub/driver/state/copy/shared_staging.hpp"

#include <sys/mman.h>

#include <algorithm>

#include "client_stub/driver/state/context/context.hpp"
#include "client_stub/driver/state/host_memory/host_regions.hpp"
#include "client_stub/driver/state/session/server_session.hpp"
#include "client_stub/driver/state/stream/host_callbacks.hpp"
#include "client_stub/driver/state/copy/posted_uploads.hpp"
#include "protocol/threads/polling.hpp"

namespace gpuwire::client {
namespace {

// The intervals between two polls of a waiting thread; each interval is twice as long as the one before. The device has
// work from all blocks meanwhile.
constexpr std::chrono::microseconds kNapMin{50}, kNapMax{400};

}  // namespace

bool SharedStaging::is_usable(const Caller& caller, uint64_t stream) const noexcept {
  // In a host function the server may only answer after the function has returned.
  if (in_host_callback() || !caller.state) return false;
  if (count_.load(std::memory_order_relaxed) == 0) {
    const ServerFacts& facts = caller.session->facts();
    if (!facts.knows(uint32_t(wire::SessionOrdinal::copy_region_to_device)) || !can_share_pages(caller)) return false;
  }
  const StreamState* state = find_stream(caller.state, stream);
  return state && (!state->context || state->context->base->handle == caller.context_handle);
}

int SharedStaging::find_free(uint64_t context) noexcept {
  int found = kNone;
  for (size_t i = 0; i < blocks_.size(); ++i) {
    Block& block = blocks_[i];
    if (block.state != State::free || block.context != context) continue;
    if (found == kNone || block.freed > blocks_[size_t(found)].freed) found = int(i);
  }
  if (found != kNone) blocks_[size_t(found)].state = State::taken;
  return found;
}

// Reserves the slot of a block that is about to be made.
int SharedStaging::reserve(const Caller& caller) noexcept {
  size_t own = 0;
  int place = kNone;
  for (size_t i = 0; i < blocks_.size(); ++i) {
    if (blocks_[i].state == State::absent) place = int(i);
    else own += blocks_[i].context == caller.context_handle;
  }
  const size_t most = caller.server->posted_uploads.several_contexts() ? kStagingBlocksOfOneMax : kStagingBlocksMax;
  if (place == kNone || own >= most) return kNone;
  blocks_[size_t(place)] = {.context = caller.context_handle, .state = State::making};
  return place;
}

int SharedStaging::take(const Caller& caller, bool may_make) noexcept {
  int block = kNone;
  {
    MutexLock lock(mutex_);
    if (ended_) return kNone;
    block = find_free(caller.context_handle);
  }
  if (block != kNone) return block;
  caller.session->poll();
  {
    MutexLock lock(mutex_);
    block = find_free(caller.context_handle);
    if (block != kNone || ended_ || refused_ || !may_make) return block;
  }
  drop_forgotten(caller);
  {
    MutexLock lock(mutex_);
    block = reserve(caller);
  }
  if (block == kNone) return kNone;
  void* memory = nullptr;
  const CUresult shared = share_pages(caller, kStagingBlockBytes, memory);
  // A child of fork() does not use the block.
  if (memory) madvise(memory, kStagingBlockBytes, MADV_DONTFORK);
  MutexLock lock(mutex_);
  Block& made = blocks_[size_t(block)];
  if (!memory) {
    refused_ = shared != CUDA_ERROR_NOT_FOUND || ++losses_ == kStagingLossesMax;
    made = {};
    return kNone;
  }
  made.data = static_cast<std::byte*>(memory);
  made.state = State::taken;
  count_.fetch_add(1, std::memory_order_relaxed);
  if (!ended_) return block;
  unmap(made);
  return kNone;
}

void SharedStaging::unmap(Block& block) noexcept {
  if (!block.data) return;  // the session has ended while the block was being lent
  munmap(block.data, kStagingBlockBytes);
  block = {};
  count_.fetch_sub(1, std::memory_order_relaxed);
}

void SharedStaging::release(Block& block) noexcept {
  block.state = State::free;
  block.freed = ++freed_;
  returns_.store(returns_.load(std::memory_order_relaxed) + 1, std::memory_order_relaxed);
  changed_.notify_all();
}

void SharedStaging::give_back(int block) noexcept {
  MutexLock lock(mutex_);
  Block& back = blocks_[size_t(block)];
  ended_ ? unmap(back) : release(back);
}

void SharedStaging::lend(int block, uint64_t sequence) noexcept {
  MutexLock lock(mutex_);
  Block& away = blocks_[size_t(block)];
  if (ended_) return unmap(away);  // no notice will report that it has been read
  away.state = State::lent;
  away.sequence = sequence;
}

void SharedStaging::has_read(uint64_t sequence) noexcept {
  MutexLock lock(mutex_);
  for (Block& block : blocks_) {
    if (block.state == State::lent && block.sequence == sequence) return release(block);
  }
}

bool SharedStaging::await_return(const Caller& caller, uint64_t before) noexcept {
  using Clock = std::chrono::steady_clock;
  if (blocks() == 0 || starved_.load(std::memory_order_relaxed) == before) return false;
  caller.session->flush();
  const auto begun = Clock::now();
  for (auto nap = kNapMin;;) {
    caller.session->poll();
    if (returns() != before) return true;
    if (caller.session->state() != CUDA_SUCCESS) return false;
    const auto spent = Clock::now() - begun;
    if (spent < kPollAlone) {
      relax();
      continue;
    }
    MutexLock lock(mutex_);
    if (ended_) return false;
    if (spent >= kStagingPatience) {
      starved_.store(before, std::memory_order_relaxed);
      return false;
    }
    changed_.wait_for(lock.native(), nap, [&]() REQUIRES(mutex_) { return ended_ || returns() != before; });
    nap = std::min(nap * 2, kNapMax);
  }
}

unsigned SharedStaging::take_helpers(unsigned most) noexcept {
  unsigned left = helpers_.load(std::memory_order_relaxed), taken = 0;
  do {
    taken = std::min(left, most);
  } while (taken != 0 && !helpers_.compare_exchange_weak(left, left - taken, std::memory_order_relaxed));
  return taken;
}

bool SharedStaging::make_room(const Caller& caller) noexcept {
  {
    MutexLock lock(mutex_);
    if (ended_) return false;
    for (Block& block : blocks_) {
      if (block.state != State::free) continue;
      block.context = 0;
      forgotten_ = true;
    }
    refused_ = true;
  }
  return drop_forgotten(caller);
}

// Blocks in use are returned before the context ends, because their copies belong to it.
void SharedStaging::forget(const Caller& caller, uint64_t context) noexcept {
  {
    MutexLock lock(mutex_);
    for (Block& block : blocks_) {
      if (block.state == State::absent || block.context != context) continue;
      block.context = 0;
      forgotten_ = true;
    }
    refused_ = false;
  }
  drop_forgotten(caller);
}

// Sends a frame for each block, without the lock, because lend() takes the lock under the send lock.
bool SharedStaging::drop_forgotten(const Caller& caller) noexcept {
  std::array<std::byte*, kStagingBlocksMax> dropped;
  size_t count = 0;
  {
    MutexLock lock(mutex_);
    if (!forgotten_) return false;
    forgotten_ = false;
    for (Block& block : blocks_) {
      if (block.state == State::absent || block.context != 0) continue;
      if (block.state == State::free) {
        dropped[count++] = block.data;
        block = {};
      } else {
        forgotten_ = true;
      }
    }
    count_.fetch_sub(count, std::memory_order_relaxed);
  }
  for (size_t i = 0; i < count; ++i) unshare_pages(caller, dropped[i], kStagingBlockBytes);
  return count != 0;
}

size_t SharedStaging::blocks() const noexcept { return count_.load(std::memory_order_relaxed); }

// Taken blocks stay mapped, because their threads may still copy. The server has its own mapping of lent blocks.
void SharedStaging::ended(SessionEnd) noexcept {
  MutexLock lock(mutex_);
  ended_ = true;
  for (Block& block : blocks_) {
    if (block.state == State::free || block.state == State::lent) unmap(block);
  }
  changed_.notify_all();
}

}  // namespace gpuwire::client
