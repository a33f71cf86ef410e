#include "client_stub/driver/memory/kept_memory.hpp"

#include <algorithm>
#include <cstdlib>
#include <cstring>
#include <limits>
#include <new>
#include <string>
#include <vector>

#include "client/forward.hpp"
#include "client/session_sends.hpp"
#include "client_stub/driver/call/caller.hpp"
#include "client_stub/driver/call/say.hpp"
#include "client_stub/driver/context/context.hpp"
#include "client_stub/driver/session/process.hpp"
#include "client_stub/driver/session/server_session.hpp"
#include "protocol/units/byte_size.hpp"
#include "schema/api_memory.capnp.h"
#include "schema/api_pool.capnp.h"

namespace gpuwire::client {
namespace {

constexpr std::chrono::nanoseconds kNever = std::chrono::nanoseconds::max();
// When another thread is giving back just now.
constexpr std::chrono::milliseconds kLookAgain{5};

ContextState* context_of(uint64_t handle) noexcept {
  return handles().find<ContextState>(wire::HandleKind::context, handle);
}

// As if the context were the current one; its health is no condition.
Caller caller_in(ServerSession& session, ContextState& context) noexcept {
  Caller caller = session.own_caller();
  caller.state = &context;
  caller.context_handle = context.base->handle;
  caller.context = uint32_t(context.handle);
  return caller;
}

bool in_order(const KeptBlock& block) { return block.use.kind == RangeKind::pool; }

}  // namespace

uint64_t KeptMemory::bytes_wanted(const char* text) noexcept {
  if (!text || !*text) return 0;
  try {
    auto bytes = units::parse_byte_size(text);
    if (bytes) return *bytes;
    say("GPUWIRE_KEPT_MEMORY: " + bytes.error() + "; no freed memory is kept");
  } catch (...) {}  // no memory for the line
  return 0;
}

KeptMemory::KeptMemory(ServerSession& session, SessionParts& parts) noexcept
    : SessionPart(parts),
      session_(session),
      bytes_max_(bytes_wanted(std::getenv("GPUWIRE_KEPT_MEMORY"))),
      blocks_(bytes_max_) {}

KeptMemory::~KeptMemory() {
  for (const KeptBlock& block : blocks_.take_if([](const KeptBlock&) { return true; })) release_range(block.range);
}

void KeptMemory::after_fork_in_child() noexcept {
  new (&giving_) std::mutex;
  new (&mutex_) std::mutex;
  low_ = high_ = 0;  // nothing is looked for any more
  next_look_ = 0;
}

void KeptMemory::note_bounds() noexcept {
  low_.store(blocks_.low(), std::memory_order_relaxed);
  high_.store(blocks_.high(), std::memory_order_relaxed);
}

// --- allocating and freeing ----------------------------------------------------------------------------------------

bool KeptMemory::take(const Caller& caller, const BlockUse& use, CUdeviceptr* out) {
  if (!any()) return false;
  std::optional<AddressRange> range;
  {
    std::lock_guard lock(mutex_);
    range = blocks_.take(use);
    note_bounds();
  }
  if (!range) return false;
  range->device = caller.state->device;
  publish_range(*range);
  *out = range->base;
  return true;
}

// What others know of, or what the program has changed, is never handed out as if it were new; a green context has but
// a part of the device, and another context's work may use the memory, too.
bool KeptMemory::usable(const Caller& caller, const AddressRange& range) const noexcept {
  if (bytes_max_ == 0 || range.bytes > std::min(bytes_max_, kBlockBytesMax)) return false;
  if (range.context != caller.context_handle || !range.reserved || range.sync_memops || range.others_know) return false;
  const ServerFacts& facts = caller.session->facts();
  return !caller.state->is_green() && facts.knows(uint32_t(wire::SessionOrdinal::await_rest)) &&
         facts.knows(uint32_t(wire::SessionOrdinal::keeping_memory));
}

bool KeptMemory::has_room(uint64_t bytes) noexcept {
  std::lock_guard lock(mutex_);
  return blocks_.size() < KeptBlocks::kBlocksMax && bytes <= bytes_max_ - blocks_.bytes();
}

bool KeptMemory::await_rest(const Caller& caller) noexcept {
  struct NotNow {};
  ServerSession& server = *caller.server;
  std::atomic<uint64_t>& rested = caller.state->rested;
  const uint64_t newest = rested.load(std::memory_order_relaxed);
  // Nothing has been sent since: whatever used the memory has ended by then.
  if (newest != 0 && caller.session->last_sequence() == newest) return true;
  // With the send lock: what has begun to capture, or is to call a function of the program, before this frame, is known
  // here by now. Beside captures the wait would end them; a stream that stands at a function would hold everybody up.
  auto permit = [&] {
    if (!server.captures.none() || server.host_callbacks.any()) throw NotNow();
  };
  uint64_t sequence = 0;
  if (send::post_await_rest(*caller.session, caller.context, {}, &sequence, permit) != CUDA_SUCCESS) return false;
  raise(rested, sequence);
  return true;
}

bool KeptMemory::keep(const Caller& caller, const AddressRange& range, CUresult& result) {
  if (range.kind != RangeKind::device || !usable(caller, range) || caller.server->posted_uploads.several_contexts() ||
      !has_room(range.bytes) || !await_rest(caller))
    return false;
  return put(caller, range, {.context = range.context, .bytes = range.bytes}, result);
}

bool KeptMemory::keep_in_order(const Caller& caller, const AddressRange& range, uint64_t wire_stream,
                               CUresult& result) {
  if (range.kind != RangeKind::pool || !usable(caller, range) || !caller.server->captures.none()) return false;
  if (range.owner == 0 && device_pools_changed_.load(std::memory_order_relaxed)) return false;
  const StreamState* stream = find_stream(caller.state, wire_stream);
  // The server may not have heard of the thread's own stream.
  if (!stream || (stream != &caller.state->legacy && stream->context != caller.state) || t_unannounced) return false;
  // In the NULL stream alone a free holds back what other streams do next, which nothing that is not sent can.
  if (stream == &caller.state->legacy && caller.state->blocking_work.load(std::memory_order_relaxed)) return false;
  if (!has_room(range.bytes)) return false;
  return put(caller, range,
             {.kind = RangeKind::pool,
              .context = range.context,
              .bytes = range.bytes,
              .pool = range.owner,
              .stream = wire_stream},
             result);
}

bool KeptMemory::put(const Caller& caller, const AddressRange& range, const BlockUse& use, CUresult& result) {
  auto taken = address_map().take(range.base, [&](const AddressRange& found) {
    return found.buffer_id == range.buffer_id && !found.sync_memops && !found.others_know;
  });
  if (!taken) return false;
  const KeptBlock block{*taken, use, Clock::now()};
  result = CUDA_SUCCESS;
  if (insert(block, *caller.state)) {
    begin_keeping();
  } else {
    release_range(block.range);
    result = send_free(block);
  }
  return true;
}

bool KeptMemory::insert(const KeptBlock& block, const ContextState& context) noexcept {
  try {
    std::lock_guard lock(mutex_);
    // Under the lock, with which what is kept in the order of streams is given back when one begins to capture, and a
    // context's blocks are forgotten when it has ended.
    if (in_order(block) && !session_.captures.none()) return false;
    if (!context.alive.load(std::memory_order_relaxed) || !blocks_.add(block)) return false;
    note_bounds();
    return true;
  } catch (...) {
    return false;
  }
}

// The frame also wakes the session's thread, which looks from now on.
void KeptMemory::begin_keeping() noexcept {
  if (keeping()) [[likely]]
    return;
  std::lock_guard giving(giving_);
  {
    std::lock_guard lock(mutex_);
    if (keeping_ || blocks_.empty()) return;
    keeping_ = true;
    next_look_.store((Clock::now() + kKeptTime).time_since_epoch().count(), std::memory_order_relaxed);
  }
  static_cast<void>(send::post_keeping_memory(session_.connection(), 0, {.keeps = true}));
}

// --- giving back ---------------------------------------------------------------------------------------------------

// Bare frames: they are no work of the program's, in whichever thread this is.
CUresult KeptMemory::send_free(const KeptBlock& block) noexcept {
  ContextState* context = context_of(block.range.context);
  // What is left of a context that has ended, or is of no more use, goes with it.
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

template <class Choose>
void KeptMemory::send_back(Choose&& choose) noexcept {
  std::vector<KeptBlock> back;
  bool ends = false;
  try {
    std::lock_guard lock(mutex_);
    back = blocks_.take_if(choose);
    note_bounds();
    if (blocks_.empty()) {
      ends = std::exchange(keeping_, false);
      next_look_.store(0, std::memory_order_relaxed);
    }
  } catch (...) {
    return;  // no memory; they are kept for longer
  }
  for (const KeptBlock& block : back) {
    release_range(block.range);
    static_cast<void>(send_free(block));  // not sent: the session is over
  }
  if (ends) static_cast<void>(send::post_keeping_memory(session_.connection(), 0, {.keeps = false}));
}

template <class Choose>
void KeptMemory::give_back_if(Choose&& choose) noexcept {
  if (!keeping()) [[likely]]
    return;
  std::lock_guard giving(giving_);
  send_back(choose);
}

void KeptMemory::give_back_all(const Caller& caller) noexcept {
  // Streams at rest, as far as the program knows.
  std::vector<BlockUse> rested;
  try {
    std::lock_guard giving(giving_);
    {
      std::lock_guard lock(mutex_);
      blocks_.for_each([&](const KeptBlock& block) {
        const ContextState* context = in_order(block) ? context_of(block.range.context) : nullptr;
        const StreamState* stream = context ? find_stream(context, block.use.stream) : nullptr;
        auto same = [&](const BlockUse& use) {
          return use.context == block.use.context && use.stream == block.use.stream;
        };
        if (stream && stream_idle(*stream) && std::none_of(rested.begin(), rested.end(), same))
          rested.push_back(block.use);
      });
    }
    send_back([](const KeptBlock&) { return true; });
  } catch (...) {
    return;
  }
  if (in_host_callback() || !caller.server->captures.none()) return;
  for (const BlockUse& use : rested) {
    ContextState* context = context_of(use.context);
    if (!context || context_health(*context) != CUDA_SUCCESS) continue;
    static_cast<void>(
        forward::cuStreamSynchronize(caller_in(session_, *context), reinterpret_cast<CUstream>(use.stream)));
  }
}

void KeptMemory::give_back_of_stream(uint64_t wire_stream) noexcept {
  give_back_if([&](const KeptBlock& block) { return in_order(block) && block.use.stream == wire_stream; });
}

void KeptMemory::give_back_of_streams() noexcept { give_back_if(in_order); }

void KeptMemory::give_back_of(const ContextState& context) noexcept {
  give_back_if([&](const KeptBlock& block) { return in_order(block) && block.range.context == context.handle; });
}

void KeptMemory::forget(const ContextState& context) noexcept {
  give_back_if([&](const KeptBlock& block) { return block.range.context == context.handle; });
}

void KeptMemory::give_back_at(uint64_t address) noexcept {
  give_back_if([&](const KeptBlock& block) { return block.range.contains(address, 1); });
}

void KeptMemory::look_closely(std::span<const std::byte> arguments) noexcept {
  uint64_t word = 0;
  for (size_t at = 0; at + sizeof word <= arguments.size(); at += sizeof word) {
    std::memcpy(&word, arguments.data() + at, sizeof word);
    look_at(word);
  }
}

std::chrono::nanoseconds KeptMemory::look(Clock::time_point now) noexcept {
  const Clock::rep due = next_look_.load(std::memory_order_relaxed);
  if (due == 0) return kNever;
  const Clock::duration left = Clock::duration(due) - now.time_since_epoch();
  if (left.count() > 0) return left;
  const std::unique_lock giving(giving_, std::try_to_lock);
  if (!giving) return kLookAgain;
  send_back([&](const KeptBlock& block) { return now - block.since >= kKeptTime; });
  std::lock_guard lock(mutex_);
  if (blocks_.empty()) return kNever;
  const Clock::time_point next = blocks_.oldest() + kKeptTime;
  next_look_.store(next.time_since_epoch().count(), std::memory_order_relaxed);
  return next - now;
}

}  // namespace gpuwire::client
