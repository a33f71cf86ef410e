// The calls about device memory that do more than forward their arguments.
#include <algorithm>
#include <array>

#include "protocol/wire/limits.hpp"
#include "schema/api_memory.capnp.h"
#include "schema/api_virtual_memory.capnp.h"
#include "server/driver_table.hpp"
#include "server/custom.hpp"
#include "server/session_handlers.hpp"
#include "server/replay/context/context.hpp"
#include "server/replay/call/generated_support.hpp"
#include "server/replay/call/reply.hpp"
#include "server/replay/session/replay_state.hpp"
#include "server/replay/stream/stream_rest.hpp"
#include "server/session_notices.hpp"

namespace gpuwire::server {

namespace {

// Prefetched blocks take at most this fraction of the free memory, because the program may need the rest for something
// else, and other tenants may need it, too.
constexpr uint64_t kProfiledShare = 4;

uint64_t profiled_bytes_max(Replay& replay) {
  size_t free_bytes = 0, total_bytes = 0;
  if (drive(replay.driver().cuMemGetInfo_v2, &free_bytes, &total_bytes) != CUDA_SUCCESS) return 0;
  return std::min<uint64_t>(wire::kProfiledBytesMax, free_bytes / kProfiledShare);
}

// The blocks that one frame prefetches for the program.
class PrefetchedBlocks {
 public:
  size_t count() const { return count_; }
  // Prefetches a block. `permit` runs the allocation, or returns an error. Returns false if the allocation was not
  // made.
  template <class Permit>
  bool add(Replay& replay, uint64_t bytes, Permit&& permit) {
    CUdeviceptr address = 0;
    if (permit([&] { return drive(replay.driver().cuMemAlloc_v2, &address, size_t(bytes)); }) != CUDA_SUCCESS)
      return false;
    addresses_[count_++] = address;
    return true;
  }
  void answer(Replay& replay, Call& call) const {
    notify::allocated_ahead(replay.outbox(),
                            {.sequence = call.header.sequence, .addresses = wire::Words(addresses_.data(), count_)});
    finish(replay, call, CUDA_SUCCESS);
  }

 private:
  std::array<uint64_t, std::max(wire::kPrefetchedBlocksMax, wire::kProfiledBlocksMax)> addresses_{};
  size_t count_ = 0;
};

}  // namespace

// A client sends await_rest instead of cuMemFree for memory that it caches. It must not send it during a capture, which
// the call would end, nor while a stream may wait at one of its callbacks; a client that does so harms only itself.
void await_rest(Replay& replay, Call& call) { finish(replay, call, drive(replay.driver().cuCtxSynchronize)); }

// The driver's cuMemFree waits for the work of all streams of the context. The program did not ask for this free, so it
// may have work that ends only after another action of the program: the blocks are freed only if no work is in flight.
void free_at_rest(Replay& replay, Call& call) {
  auto addresses = call.message.getRoot<schema::FreeAtRest>().getAddresses();
  if (addresses.size() > wire::kCachedBlocksMax) throw ProtocolFault{"free_at_rest: too many blocks"};
  // The driver answers queries of streams only while a context is current; at_rest() may leave another context current.
  const uint32_t context = call.header.context;
  const bool rests = enter_living(replay, context) && at_rest(replay) && enter_living(replay, context);
  if (rests) {
    // An invalid address is the client's fault, as with cuMemFree.
    for (uint64_t address : addresses) {
      if (address != 0) drive(replay.driver().cuMemFree_v2, CUdeviceptr(address));
    }
  }
  notify::freed_at_rest(replay.outbox(), {.sequence = call.header.sequence, .freed = rests});
  finish(replay, call, CUDA_SUCCESS);
}

// The client sends this frame at a point where the program allocates, too, so any wait of the driver here could also
// have happened in the program's call.
void allocate_ahead(Replay& replay, Call& call) {
  auto params = call.message.getRoot<schema::AllocateAhead>();
  const uint64_t bytes = params.getBytes(), count = params.getCount();
  if (count > wire::kPrefetchedBlocksMax) throw ProtocolFault{"allocate_ahead: too many blocks"};
  PrefetchedBlocks blocks;
  if (bytes != 0 && enter_living(replay, call.header.context)) {
    auto within = [&](const auto& allocate) { return replay.state().within_grant(allocate); };
    while (blocks.count() < count && blocks.add(replay, bytes, within)) {}
  }
  blocks.answer(replay, call);
}

void allocate_known(Replay& replay, Call& call) {
  auto sizes = call.message.getRoot<schema::AllocateKnown>().getSizes();
  if (sizes.size() > wire::kProfiledBlocksMax) throw ProtocolFault{"allocate_known: too many blocks"};
  PrefetchedBlocks blocks;
  if (enter_living(replay, call.header.context)) {
    auto beyond = [&](const auto& allocate) { return replay.state().beyond_grant(allocate); };
    uint64_t room = profiled_bytes_max(replay);
    for (uint64_t bytes : sizes) {
      if (bytes == 0 || bytes > room || !blocks.add(replay, bytes, beyond)) break;
      room -= bytes;
    }
  }
  blocks.answer(replay, call);
}

void keeping_memory(Replay& replay, Call& call) {
  replay.state().note_keeping_memory(call.message.getRoot<schema::KeepingMemory>().getKeeps());
  finish(replay, call, CUDA_SUCCESS);
}

namespace custom {

// cuMemFree waits until the device has no work left. If it waited for a stream that waits at a callback of the client,
// all other calls would wait, too. So the memory is freed after the callback's answer; the client no longer uses the
// address.
void cuMemFree_v2(Replay& replay, Call& call) {
  CUdeviceptr address = call.message.getRoot<schema::CuMemFreeV2Params>().getDptr();
  if (address != 0 && postpone(replay, {call.header.context, address, false}))
    return finish(replay, call, CUDA_SUCCESS);
  finish(replay, call, drive(replay.driver().cuMemFree_v2, address));
}

// The driver returns the existing handle and increments its reference count. The client counts its program's
// references, so the driver's count is kept at one.
void cuMemRetainAllocationHandle(Replay& replay, Call& call) {
  Incoming incoming(replay, call, false);
  auto params = call.message.getRoot<schema::CuMemRetainAllocationHandleParams>();
  auto function = replay.driver().cuMemRetainAllocationHandle;
  CUmemGenericAllocationHandle native = 0;
  uint64_t handle = 0;
  CUresult result = incoming.ready(function != nullptr);
  if (!result) result = function(&native, from_word<void*>(params.getAddr()));
  if (!result) {
    handle = incoming.known(wire::HandleKind::memory_allocation, word(native));
    if (handle) {
      drive(replay.driver().cuMemRelease, native);
    } else {
      incoming.insert(wire::HandleKind::memory_allocation, handle = params.getHandle(), word(native));
    }
  }
  ReplyMessage<schema::CuMemRetainAllocationHandleResults> reply(0, 0);
  if (!result) reply.results().setHandle(handle);
  incoming.reply(reply.message(), reply.results(), result);
}

}  // namespace custom

}  // namespace gpuwire::server
