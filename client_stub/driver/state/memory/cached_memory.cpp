#include "client_stub/driver/state/memory/cached_memory.hpp"

#include <algorithm>
#include <cstring>
#include <limits>
#include <new>
#include <numeric>
#include <string>
#include <vector>

#include "client/forward.hpp"
#include "client/session_sends.hpp"
#include "client_stub/driver/state/call/caller.hpp"
#include "client_stub/driver/process/log_stderr.hpp"
#include "client_stub/driver/state/context/context.hpp"
#include "client_stub/driver/state/handle/handle_table.hpp"
#include "client_stub/driver/state/session/server_session.hpp"
#include "client_stub/driver/state/copy/posted_uploads.hpp"
#include "client_stub/driver/state/stream/capture.hpp"
#include "client_stub/driver/state/stream/host_callbacks.hpp"
#include "client_stub/driver/state/copy/memory_in_flight.hpp"
#include "client_stub/session/environment.hpp"
#include "protocol/units/byte_size.hpp"
#include "schema/api_memory.capnp.h"
#include "schema/api_pool.capnp.h"

namespace gpuwire::client {
namespace {

constexpr std::chrono::nanoseconds kNever = std::chrono::nanoseconds::max();
// The next poll while another thread releases blocks.
constexpr std::chrono::milliseconds kPollAgain{5};
// The next poll while the server has not reported the result of frees.
constexpr std::chrono::milliseconds kPollForAnswer{20};
// The value of `leaving` while the frame of the blocks is being sent.
constexpr uint64_t kLeavingNow = ~uint64_t{0};
// Thrown under the send lock if the frame must not be sent at present.
struct NotNow {};

ContextState* context_of(uint64_t handle) noexcept {
  return handles().find<ContextState>(wire::HandleKind::context, handle);
}

// A caller in the context as if it were current. The context's health is no condition.
Caller caller_in(ServerSession& session, ContextState& context) noexcept {
  Caller caller = session.own_caller();
  caller.state = &context;
  caller.context_handle = context.base->handle;
  caller.context = uint32_t(context.handle);
  return caller;
}

bool in_order(const CachedBlock& block) { return block.use.kind == RangeKind::pool; }

uint64_t bytes_of(const std::vector<uint64_t>& sizes) {
  return std::accumulate(sizes.begin(), sizes.end(), uint64_t{0});
}

std::chrono::milliseconds time_of(const CachedBlock& block) {
  return block.known ? CachedMemory::kProfiledTime : CachedMemory::kCachedTime;
}

// Runs under the send lock, so captures and functions of the program from earlier frames are known here. The server's
// wait would end a capture; behind a function that a stream is still to call, it would delay all threads.
void permit_wait(ServerSession& session) {
  if (!session.captures.none() || session.host_callbacks.any_to_come() ||
      has(session.in_flight.standing(), Awaits::functions))
    throw NotNow();
}

}  // namespace

uint64_t CachedMemory::bytes_wanted(const char* text) noexcept {
  if (!text || !*text) return kBytesUsual;
  try {
    auto bytes = units::parse_byte_size(text);
    if (bytes) return *bytes;
    log_stderr("GPUWIRE_KEPT_MEMORY: " + bytes.error() + "; no freed memory is kept");
  } catch (...) {}  // no memory for the line
  return 0;
}

CachedMemory::CachedMemory(ServerSession& session, SessionParts& parts) noexcept
    : SessionPart(parts),
      session_(session),
      bytes_max_(bytes_wanted(setting("GPUWIRE_KEPT_MEMORY"))),
      blocks_(bytes_max_) {}

CachedMemory::~CachedMemory() {
  for (const CachedBlock& block : blocks_.take_if([](const CachedBlock&) { return true; })) release_range(block.range);
}

void CachedMemory::after_fork_in_child() noexcept {
  new (&profiled_mutex_) Mutex;
  new (&giving_) Mutex;
  new (&mutex_) Mutex;
  low_ = high_ = sending_low_ = sending_high_ = 0;  // no address is found in the cache any more
  next_poll_ = 0;
  asked_ = false;
}

void CachedMemory::note_bounds() noexcept {
  uint64_t low = blocks_.low(), high = blocks_.high();
  if (sending_high_ != 0) {
    low = blocks_.empty() ? sending_low_ : std::min(low, sending_low_);
    high = std::max(high, sending_high_);
  }
  low_.store(low, std::memory_order_relaxed);
  high_.store(high, std::memory_order_relaxed);
}

// --- allocating and freeing -----------------------------------------------------------------------------------------

bool CachedMemory::take(const Caller& caller, const BlockUse& use, CUdeviceptr* out) {
  if (!any()) return false;
  if (use.kind == RangeKind::pool) {
    const StreamState* stream = find_stream(caller.state, use.stream);
    if (stream && !waits_only_for_itself(*caller.state, *stream)) return false;
  }
  std::optional<CachedBlock> block;
  {
    MutexLock lock(mutex_);
    block = blocks_.take(use);
    note_bounds();
  }
  if (!block) return false;
  block->range.device = caller.state->device;
  publish_range(block->range);
  *out = block->range.base;
  if (!block->ahead) return true;
  note_new(caller, use);
  if (!block->known) prefetch(caller, use, false);
  return true;
}

// A green context has only a part of the device, and work of other contexts may use its memory.
bool CachedMemory::possible(const Caller& caller) const noexcept {
  const ServerFacts& facts = caller.session->facts();
  return !caller.state->is_green() && facts.knows(uint32_t(wire::SessionOrdinal::await_rest)) &&
         facts.knows(uint32_t(wire::SessionOrdinal::keeping_memory)) &&
         facts.knows(uint32_t(wire::SessionOrdinal::free_at_rest)) &&
         facts.knows(uint32_t(wire::SessionOrdinal::allocate_ahead));
}

// A block is not reused if other processes know it or the program has changed its attributes.
bool CachedMemory::usable(const Caller& caller, const AddressRange& range) const noexcept {
  if (bytes_max_ == 0 || range.bytes > std::min(bytes_max_, kBlockBytesMax)) return false;
  if (range.context != caller.context_handle || !range.reserved || range.sync_memops || range.others_know) return false;
  return possible(caller);
}

bool CachedMemory::has_room(uint64_t bytes) noexcept {
  MutexLock lock(mutex_);
  return blocks_.size() + asked_blocks(nullptr) < CachedBlocks::kBlocksMax &&
         blocks_.bytes() + asked_bytes() + bytes <= bytes_max_;
}

bool CachedMemory::await_rest(const Caller& caller) noexcept {
  std::atomic<uint64_t>& rested = caller.state->rested;
  const uint64_t newest = rested.load(std::memory_order_relaxed);
  // Nothing was sent since, so all users of the memory have ended by then.
  if (newest != 0 && caller.session->last_sequence() == newest) return true;
  uint64_t sequence = 0;
  if (send::post_await_rest(*caller.session, caller.context, {}, &sequence, [&] { permit_wait(*caller.server); }))
    return false;
  raise(rested, sequence);
  return true;
}

bool CachedMemory::keep(const Caller& caller, const AddressRange& range, CUresult& result) {
  if (range.kind != RangeKind::device || !usable(caller, range) || caller.server->posted_uploads.several_contexts() ||
      !has_room(range.bytes) || !await_rest(caller))
    return false;
  return put(caller, range, {.context = range.context, .bytes = range.bytes}, result);
}

bool CachedMemory::keep_in_order(const Caller& caller, const AddressRange& range, uint64_t wire_stream,
                                 CUresult& result) {
  if (range.kind != RangeKind::pool || !usable(caller, range) || !caller.server->captures.none()) return false;
  if (range.owner == 0 && device_pools_changed_.load(std::memory_order_relaxed)) return false;
  const StreamState* stream = find_stream(caller.state, wire_stream);
  // The server may not have received the thread's own stream yet.
  if (!stream || (stream != &caller.state->legacy && stream->context != caller.state) || t_unannounced) return false;
  // In the NULL stream a free delays later work of other streams; a free that is not sent cannot delay it.
  if (stream == &caller.state->legacy && caller.state->blocking_work.load(std::memory_order_relaxed)) return false;
  // In another stream it waits for earlier work of the NULL stream, so its end proves the end of that.
  if (!waits_only_for_itself(*caller.state, *stream)) return false;
  if (!has_room(range.bytes)) return false;
  return put(caller, range,
             {.kind = RangeKind::pool,
              .context = range.context,
              .bytes = range.bytes,
              .pool = range.owner,
              .stream = wire_stream},
             result);
}

bool CachedMemory::put(const Caller& caller, const AddressRange& range, const BlockUse& use, CUresult& result) {
  auto taken = address_map().take(range.base, [&](const AddressRange& found) {
    return found.buffer_id == range.buffer_id && !found.sync_memops && !found.others_know;
  });
  if (!taken) return false;
  const CachedBlock block{*taken, use, Clock::now()};
  result = CUDA_SUCCESS;
  if (insert(block, *caller.state)) {
    begin_keeping();
  } else {
    release_range(block.range);
    result = send_free(block);
  }
  return true;
}

bool CachedMemory::insert(const CachedBlock& block, const ContextState& context) noexcept {
  try {
    MutexLock lock(mutex_);
    // Lock: mutex_, under which the blocks of a capturing stream are released, and an ended context's blocks removed.
    if (in_order(block) && !session_.captures.none()) return false;
    if (!context.alive.load(std::memory_order_relaxed) || !blocks_.add(block)) return false;
    note_bounds();
    return true;
  } catch (...) {
    return false;
  }
}

uint64_t CachedMemory::whole_bytes(int device) const noexcept {
  if (!any()) return 0;
  uint64_t bytes = 0;
  MutexLock lock(mutex_);
  blocks_.for_each([&](const CachedBlock& block) {
    if (!in_order(block) && block.range.device == device && block.range.bytes >= kWholeBytes)
      bytes += (block.range.bytes + kWholeBytes - 1) / kWholeBytes * kWholeBytes;
  });
  return bytes;
}

// The frame also wakes the session's thread, which polls from now on.
void CachedMemory::begin_keeping() noexcept {
  if (keeping()) [[likely]]
    return;
  MutexLock giving(giving_);
  {
    MutexLock lock(mutex_);
    if (keeping_ || (blocks_.empty() && asks_.empty())) return;
    keeping_ = true;
    next_poll_.store((Clock::now() + kCachedTime).time_since_epoch().count(), std::memory_order_relaxed);
  }
  static_cast<void>(send::post_keeping_memory(session_.connection(), 0, {.keeps = true}));
}

// --- prefetching ----------------------------------------------------------------------------------------------------

uint64_t CachedMemory::asked_bytes() const noexcept {
  uint64_t bytes = 0;
  for (const Ask& ask : asks_) {
    if (!ask.known) bytes += bytes_of(ask.sizes);
  }
  return bytes;
}

size_t CachedMemory::asked_blocks(const BlockUse* use) const noexcept {
  size_t blocks = 0;
  for (const Ask& ask : asks_) {
    if (!use) blocks += ask.sizes.size();
    else if (use->kind == RangeKind::device && use->context == ask.context)
      blocks += size_t(std::count(ask.sizes.begin(), ask.sizes.end(), use->bytes));
  }
  return blocks;
}

// The other half of the bound is reserved for blocks that the program frees.
uint32_t CachedMemory::count_prefetched(const BlockUse& use, bool missed) {
  const uint32_t wanted = demand_.allocated(use, missed, blocks_.count(use) + asked_blocks(&use), Clock::now());
  const uint64_t taken = blocks_.bytes() + asked_bytes(), most = bytes_max_ / 2;
  const uint64_t room = (most - std::min(most, taken)) / use.bytes;
  return uint32_t(std::min({uint64_t(wanted), room, uint64_t(prefetch_places())}));
}

size_t CachedMemory::prefetch_places() const noexcept {
  const size_t most = CachedBlocks::kBlocksMax / 2, used = blocks_.size() + asked_blocks(nullptr);
  return most - std::min(most, used);
}

// Called within an allocation of the program: the driver may wait here, as natively.
void CachedMemory::prefetch(const Caller& caller, const BlockUse& use, bool missed) noexcept {
  if (use.bytes > std::min(bytes_max_, kBlockBytesMax) || !possible(caller)) return;
  Ask ask{.context = use.context};
  uint32_t count = 0;
  try {
    MutexLock lock(mutex_);
    count = count_prefetched(use, missed);
    ask.sizes.assign(count, use.bytes);
  } catch (...) {
    return;
  }
  if (count != 0 && send::post_allocate_ahead(*caller.session, caller.context, {.bytes = use.bytes, .count = count},
                                              &ask.sequence, [&] { note_asked(ask); }) == CUDA_SUCCESS)
    begin_keeping();
}

void CachedMemory::note_asked(Ask& ask) {
  permit_wait(session_);
  MutexLock lock(mutex_);
  asks_.push_back(std::move(ask));
  asked_.store(true, std::memory_order_relaxed);
}

std::vector<uint64_t> CachedMemory::profiled_here(const Caller& caller) const {
  std::vector<uint64_t> sizes;
  blocks_.for_each([&](const CachedBlock& block) {
    if (block.known && block.leaving == 0 && block.use.context == caller.context_handle)
      sizes.push_back(block.use.bytes);
  });
  for (const Ask& ask : asks_) {
    if (ask.known && ask.context == caller.context_handle)
      sizes.insert(sizes.end(), ask.sizes.begin(), ask.sizes.end());
  }
  return sizes;
}

void CachedMemory::fit_profiled(std::vector<uint64_t>& sizes) const noexcept {
  uint64_t taken = blocks_.profiled_bytes();
  for (const Ask& ask : asks_) {
    if (ask.known) taken += bytes_of(ask.sizes);
  }
  uint64_t room = wire::kProfiledBytesMax - std::min(taken, wire::kProfiledBytesMax);
  const size_t places = prefetch_places();
  size_t fit = 0;
  while (fit < std::min(sizes.size(), places) && sizes[fit] <= room) room -= sizes[fit++];
  sizes.resize(fit);
}

void CachedMemory::prefetch_profiled(const Caller& caller, const BlockUse& use) noexcept {
  if (!possible(caller) || !caller.session->facts().knows(uint32_t(wire::SessionOrdinal::allocate_known))) return;
  try {
    MutexLock of_known(profiled_mutex_);
    Ask ask{.context = use.context, .known = true};
    {
      MutexLock lock(mutex_);
      ask.sizes = profiled_here(caller);
    }
    ask.sizes = known_.missed(caller.state->device, use.bytes, ask.sizes, Clock::now());
    {
      MutexLock lock(mutex_);
      fit_profiled(ask.sizes);
    }
    if (ask.sizes.empty()) return;
    const std::vector<uint64_t> sizes = ask.sizes;
    if (send::post_allocate_known(*caller.session, caller.context, {.sizes = sizes}, &ask.sequence,
                                  [&] { note_asked(ask); }))
      return;
  } catch (...) {
    return;  // no memory
  }
  begin_keeping();
}

void CachedMemory::note_new(const Caller& caller, const BlockUse& use) noexcept {
  if (first_while_over_.load(std::memory_order_relaxed)) [[likely]]
    return;
  try {
    MutexLock lock(profiled_mutex_);
    known_.allocated(caller.state->device, use.bytes, Clock::now());
    if (known_.over()) first_while_over_.store(true, std::memory_order_relaxed);
  } catch (...) {}  // no memory
}

void CachedMemory::ended(SessionEnd how) noexcept {
  if (how != SessionEnd::closed) return;
  try {
    if (!profiled_mutex_.try_lock()) return;
    const MutexLock lock(profiled_mutex_, std::adopt_lock);
    known_.ended();
  } catch (...) {}  // no memory
}

void CachedMemory::allocated_ahead(uint64_t sequence, std::span<const uint64_t> addresses) noexcept {
  auto find = [&]() REQUIRES(mutex_) {
    return std::find_if(asks_.begin(), asks_.end(), [&](const Ask& ask) { return ask.sequence == sequence; });
  };
  // The request stays in asks_ while its blocks arrive. Only this thread removes it, or the end of its context, which
  // discards the blocks.
  Ask ask;
  try {
    MutexLock lock(mutex_);
    auto found = find();
    if (found == asks_.end()) return;  // its context has ended
    ask = *found;
  } catch (...) {}  // no memory: no allocation gets the blocks before the context ends
  for (size_t i = 0; i < std::min(addresses.size(), ask.sizes.size()); ++i)
    insert_prefetched(ask, ask.sizes[i], addresses[i]);
  MutexLock lock(mutex_);
  if (auto found = find(); found != asks_.end()) asks_.erase(found);
  asked_.store(!asks_.empty(), std::memory_order_relaxed);
}

void CachedMemory::insert_prefetched(const Ask& ask, uint64_t bytes, uint64_t address) noexcept {
  const ContextState* context = context_of(ask.context);
  if (address == 0 || address + bytes < address || !context) return;
  CachedBlock block{.range = {.base = address,
                              .bytes = bytes,
                              .device = context->device,
                              .server = &session_,
                              .context = ask.context},
                    .use = {.context = ask.context, .bytes = bytes},
                    .since = Clock::now(),
                    .ahead = true,
                    .known = ask.known};
  block.range.reserved = address_reservations().reserve(address, bytes);
  // A mapping of this process lies there. The block is unusable and is released with the next ones.
  if (!block.range.reserved) block.use.bytes = 0;
  if (!insert(block, *context)) release_range(block.range);
}

// --- releasing ------------------------------------------------------------------------------------------------------

// Posts the frame without the steps of a program's call, because the free may run on any thread.
CUresult CachedMemory::send_free(const CachedBlock& block) noexcept {
  ContextState* context = context_of(block.range.context);
  // Blocks of a context that has ended or failed end with it.
  if (!context || context_health(*context) != CUDA_SUCCESS) return CUDA_SUCCESS;
  const Caller caller = caller_in(session_, *context);
  if (in_order(block)) {
    return post<schema::CuMemFreeAsyncParams>(*caller.session, forward_ordinal::cuMemFreeAsync, caller.context,
                                              message_words<schema::CuMemFreeAsyncParams>(), [&](auto params) {
                                                params.setDptr(block.range.base);
                                                params.setHStream(block.use.stream);
                                              });
  }
  return post<schema::CuMemFreeV2Params>(*caller.session, forward_ordinal::cuMemFree_v2, caller.context,
                                         message_words<schema::CuMemFreeV2Params>(),
                                         [&](auto params) { params.setDptr(block.range.base); });
}

// The state that reports an empty cache changes after the frees: a thread that relies on it alone may destroy the
// blocks' stream next.
template <class Choose>
void CachedMemory::send_back(Choose&& choose) noexcept {
  std::vector<CachedBlock> back;
  try {
    MutexLock lock(mutex_);
    back = blocks_.take_if([&](const CachedBlock& block) { return block.leaving == 0 && choose(block); });
    if (!back.empty()) sending_low_ = back.front().range.base, sending_high_ = back.back().range.end();
  } catch (...) {
    return;  // no memory; the blocks are cached for longer
  }
  for (const CachedBlock& block : back) {
    release_range(block.range);
    static_cast<void>(send_free(block));  // not sent: the session is over
  }
  bool ends = false;
  {
    MutexLock lock(mutex_);
    sending_low_ = sending_high_ = 0;
    note_bounds();
    if (blocks_.empty() && asks_.empty()) {
      ends = std::exchange(keeping_, false);
      next_poll_.store(0, std::memory_order_relaxed);
    }
  }
  if (ends) static_cast<void>(send::post_keeping_memory(session_.connection(), 0, {.keeps = false}));
}

template <class Choose>
void CachedMemory::give_back_if(Choose&& choose) noexcept {
  if (!keeping()) [[likely]]
    return;
  MutexLock giving(giving_);
  send_back(choose);
}

template <class Choose>
void CachedMemory::send_at_rest(Choose&& choose) noexcept {
  for (;;) {  // once for each context
    std::vector<uint64_t> addresses;
    uint64_t handle = 0;
    try {
      MutexLock lock(mutex_);
      addresses.reserve(blocks_.size());
      blocks_.for_each([&](CachedBlock& block) {
        if (in_order(block) || block.leaving != 0 || !choose(block)) return;
        if (handle == 0) handle = block.range.context;
        if (block.range.context != handle) return;
        addresses.push_back(block.range.base);
        block.leaving = kLeavingNow;
      });
    } catch (...) {
      return;  // no memory; the blocks are cached for longer
    }
    if (addresses.empty()) return;
    const ContextState* context = context_of(handle);
    if (!context || context_health(*context) != CUDA_SUCCESS) {
      freed_at_rest(kLeavingNow, true);  // freed with the context, for which nothing is sent any more
      continue;
    }
    uint64_t sequence = 0;
    auto leave_with_frame = [&] {
      permit_wait(session_);
      MutexLock lock(mutex_);
      blocks_.for_each([&](CachedBlock& block) {
        if (block.leaving == kLeavingNow) block.leaving = sequence;
      });
    };
    if (send::post_free_at_rest(session_.connection(), uint32_t(handle), {.addresses = addresses}, &sequence,
                                leave_with_frame) != CUDA_SUCCESS)
      return freed_at_rest(kLeavingNow, false);
  }
}

void CachedMemory::freed_at_rest(uint64_t sequence, bool freed) noexcept {
  std::vector<CachedBlock> gone;
  try {
    MutexLock lock(mutex_);
    if (freed) {
      gone = blocks_.take_if([&](const CachedBlock& block) { return block.leaving == sequence; });
      note_bounds();
      // This thread receives; the session's thread sends that the cache is empty.
      if (next_poll_.load(std::memory_order_relaxed) != 0)
        next_poll_.store(Clock::now().time_since_epoch().count(), std::memory_order_relaxed);
    } else {
      blocks_.for_each([&](CachedBlock& block) {
        if (block.leaving != sequence) return;
        block.leaving = 0;
        block.since = Clock::now() - (time_of(block) - kCachedTime);  // polled again after kCachedTime
      });
    }
    for (const CachedBlock& block : gone) {
      if (block.ahead) demand_.forget(block.use);
    }
  } catch (...) {
    return;  // no memory: no allocation gets the blocks before the context ends
  }
  for (const CachedBlock& block : gone) release_range(block.range);
}

std::vector<BlockUse> CachedMemory::rested_streams() {
  std::vector<BlockUse> rested;
  MutexLock lock(mutex_);
  blocks_.for_each([&](const CachedBlock& block) {
    const ContextState* context = in_order(block) ? context_of(block.range.context) : nullptr;
    const StreamState* stream = context ? find_stream(context, block.use.stream) : nullptr;
    auto same = [&](const BlockUse& use) { return use.context == block.use.context && use.stream == block.use.stream; };
    if (stream && stream_idle(*stream) && std::none_of(rested.begin(), rested.end(), same)) rested.push_back(block.use);
  });
  return rested;
}

void CachedMemory::synchronise(const Caller& caller, const std::vector<BlockUse>& streams) noexcept {
  if (in_host_callback() || !caller.server->captures.none()) return;
  for (const BlockUse& use : streams) {
    ContextState* context = context_of(use.context);
    if (!context || context_health(*context) != CUDA_SUCCESS) continue;
    static_cast<void>(
        forward::cuStreamSynchronize(caller_in(session_, *context), reinterpret_cast<CUstream>(use.stream)));
  }
}

// A free waits for nothing natively, but another thread's call may block the server in its driver until a function of
// the program has returned, and the function may need a lock of the caller. In this case no thread waits, and blocks
// that only a wait could free stay.
bool CachedMemory::may_wait() noexcept {
  return !session_.host_callbacks.any_to_come() && !has(session_.in_flight.standing(), Awaits::functions);
}

// Notices arrive in the order of frames, so the reply comes after the notices for earlier frames.
void CachedMemory::await_answers() noexcept {
  if (!in_host_callback()) static_cast<void>(send::call_ping(session_.connection(), 0, {}));
}

// If a block is not found, another thread may be sending its free.
void CachedMemory::await_sends() noexcept { const MutexLock giving(giving_); }

void CachedMemory::give_back_at_rest(const Caller& caller, bool (*choose)(const CachedBlock&)) noexcept {
  bool asked = false;
  {
    MutexLock lock(mutex_);
    demand_.forget_all();
    for (const Ask& ask : asks_) asked |= choose({.ahead = true, .known = ask.known});
  }
  if (asked && may_wait()) await_answers();
  {
    // The blocks at rest come first, because a free in stream order is work.
    MutexLock giving(giving_);
    send_at_rest(choose);
  }
  give_back_in_order(caller);
}

void CachedMemory::give_back_in_order(const Caller& caller) noexcept {
  try {
    const std::vector<BlockUse> rested = rested_streams();
    give_back_if(in_order);
    if (may_wait()) synchronise(caller, rested);
  } catch (...) {}  // no memory; the blocks are cached for longer
}

bool CachedMemory::free_all(const Caller& caller) noexcept {
  if (!keeping()) return false;
  bool open = false;
  {
    MutexLock lock(mutex_);
    demand_.forget_all();
    open = !asks_.empty();
    blocks_.for_each([&](const CachedBlock& block) { open |= block.leaving != 0; });
  }
  if (open) await_answers();
  try {
    const std::vector<BlockUse> rested = rested_streams();
    give_back_if([](const CachedBlock&) { return true; });
    synchronise(caller, rested);
  } catch (...) {}
  return true;
}

void CachedMemory::give_back_of_stream(uint64_t wire_stream) noexcept {
  give_back_if([&](const CachedBlock& block) { return in_order(block) && block.use.stream == wire_stream; });
}

void CachedMemory::give_back_of_streams() noexcept { give_back_if(in_order); }

void CachedMemory::give_back_of(const ContextState& context) noexcept {
  give_back_if([&](const CachedBlock& block) { return in_order(block) && block.range.context == context.handle; });
}

void CachedMemory::forget(const ContextState& context) noexcept {
  if (!keeping()) [[likely]]
    return;
  {
    MutexLock lock(mutex_);
    demand_.forget_context(context.handle);
    std::erase_if(asks_, [&](const Ask& ask) { return ask.context == context.handle; });
    asked_.store(!asks_.empty(), std::memory_order_relaxed);
    // Whatever the server has done with the blocks, the client drops them now.
    blocks_.for_each([&](CachedBlock& block) {
      if (block.range.context == context.handle) block.leaving = 0;
    });
  }
  give_back_if([&](const CachedBlock& block) { return block.range.context == context.handle; });
}

void CachedMemory::await_asked(uint64_t address) noexcept {
  AddressRange entry;
  if (!address_map().find(address, entry) && may_wait()) await_answers();
}

void CachedMemory::free_at(uint64_t address) noexcept {
  auto leaves = [&](bool& found) {
    MutexLock lock(mutex_);
    const CachedBlock* block = blocks_.find(address);
    found = block != nullptr;
    return block && block->leaving != 0;
  };
  bool found = false;
  if (leaves(found) && may_wait()) await_answers();
  if (!found) return await_sends();
  give_back_if([&](const CachedBlock& block) { return block.range.contains(address, 1); });
}

void CachedMemory::scan_closely(std::span<const std::byte> arguments) noexcept {
  uint64_t word = 0;
  bool none_found = false;
  for (size_t at = 0; at + sizeof word <= arguments.size(); at += sizeof word) {
    std::memcpy(&word, arguments.data() + at, sizeof word);
    if (!may_hold(word)) [[likely]]
      continue;
    {
      MutexLock lock(mutex_);
      if (!blocks_.find(word)) {
        none_found = true;
        continue;
      }
    }
    auto named = [&](const CachedBlock& block) { return block.range.contains(word, 1); };
    const MutexLock giving(giving_);
    send_at_rest(named);
    send_back([&](const CachedBlock& block) { return in_order(block) && named(block); });
  }
  if (none_found) await_sends();
}

std::chrono::nanoseconds CachedMemory::poll(Clock::time_point now) noexcept {
  const Clock::rep due = next_poll_.load(std::memory_order_relaxed);
  if (due == 0) return kNever;
  const Clock::duration left = Clock::duration(due) - now.time_since_epoch();
  if (left.count() > 0) return left;
  if (!giving_.try_lock()) return kPollAgain;
  const MutexLock giving(giving_, std::adopt_lock);
  auto unused = [&](const CachedBlock& block) { return now - block.since >= time_of(block); };
  send_at_rest(unused);
  send_back([&](const CachedBlock& block) { return in_order(block) && unused(block); });
  MutexLock lock(mutex_);
  // The answer may have arrived already; the frame that reports the empty cache is then still to be sent.
  if (blocks_.empty() && asks_.empty()) return keeping_ ? std::chrono::nanoseconds(kPollAgain) : kNever;
  Clock::time_point next = now + (asks_.empty() ? kCachedTime : kPollForAnswer);
  blocks_.for_each([&](const CachedBlock& block) {
    next = std::min(next, block.leaving ? now + kPollForAnswer : block.since + time_of(block));
  });
  next_poll_.store(next.time_since_epoch().count(), std::memory_order_relaxed);
  return next - now;
}

}  // namespace gpuwire::client
