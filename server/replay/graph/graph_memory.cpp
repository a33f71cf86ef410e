#include "server/replay/graph/graph_memory.hpp"

#include <sys/mman.h>

#include <algorithm>
#include <cstring>
#include <memory>
#include <utility>

#include "server/driver_table.hpp"
#include "server/replay/completion/completion.hpp"
#include "server/replay/completion/polling.hpp"
#include "server/replay/call/reply.hpp"
#include "server/replay/context/context.hpp"
#include "server/replay/copy/copy.hpp"
#include "server/replay/host_memory/host_regions.hpp"
#include "server/replay/session/replay_state.hpp"
#include "server/replay/stream/stream_rest.hpp"
#include "server/session_handlers.hpp"
#include "server/session_notices.hpp"

namespace gpuwire::server {

namespace {

constexpr uint64_t kBlockPageBytes = 4096;

}  // namespace

CUresult GraphMemory::create(uint64_t number, uint64_t bytes, uint64_t& place) {
  if (bytes == 0 || bytes > wire::kRegionBytesMax) return CUDA_ERROR_INVALID_VALUE;
  Block block;
  block.mapped_bytes = (bytes + kBlockPageBytes - 1) & ~(kBlockPageBytes - 1);
  block.charge = HostCharge(replay_.host_memory());
  {
    MutexLock lock(mutex_);
    if (blocks_.contains(number)) return CUDA_ERROR_INVALID_VALUE;
    if (!block.charge.grow(bytes) || !(block.shadow = ZeroedMemory(bytes))) return CUDA_ERROR_OUT_OF_MEMORY;
    block.memory = take_destroyed(block.mapped_bytes);
    if (!block.memory &&
        (blocks_.size() >= wire::kRegionsMax || block.mapped_bytes > wire::kRegionBytesMax - mapped_bytes_))
      return CUDA_ERROR_OUT_OF_MEMORY;
  }
  if (block.memory) {
    std::memset(block.memory, 0, block.mapped_bytes);
  } else if (CUresult error = map(block)) {
    return error;
  }
  place = reinterpret_cast<uint64_t>(block.memory);
  MutexLock lock(mutex_);
  mapped_bytes_ += block.mapped_bytes;
  blocks_.emplace(number, std::move(block));
  return CUDA_SUCCESS;
}

CUresult GraphMemory::map(Block& block) const {
  void* memory = mmap(nullptr, block.mapped_bytes, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
  if (memory == MAP_FAILED) return CUDA_ERROR_OUT_OF_MEMORY;
  const CUresult result = drive(replay_.driver().cuMemHostRegister_v2, memory, size_t(block.mapped_bytes),
                                unsigned(CU_MEMHOSTREGISTER_PORTABLE));
  if (result == CUDA_SUCCESS) block.memory = static_cast<std::byte*>(memory);
  else munmap(memory, block.mapped_bytes);
  return result;
}

std::byte* GraphMemory::take_destroyed(uint64_t mapped_bytes) {
  if (destroyed_ == 0) return nullptr;
  for (auto at = blocks_.begin(); at != blocks_.end(); ++at) {
    const Block& block = at->second;
    if (!block.destroyed || block.running != 0 || block.mapped_bytes != mapped_bytes) continue;
    std::byte* memory = block.memory;
    mapped_bytes_ -= mapped_bytes;
    --destroyed_;
    blocks_.erase(at);
    return memory;
  }
  return nullptr;
}

CUresult GraphMemory::destroy(uint64_t number) {
  MutexLock lock(mutex_);
  auto found = blocks_.find(number);
  if (found == blocks_.end() || found->second.destroyed) return CUDA_ERROR_INVALID_VALUE;
  found->second.destroyed = true;
  ++destroyed_;
  return CUDA_SUCCESS;
}

// The driver waits for the work of all streams when memory is unregistered, and work that needs another action of the
// client would block the executor. So no lock is held during the call, and no work is in flight.
void GraphMemory::release_destroyed() {
  {
    MutexLock lock(mutex_);
    if (destroyed_ == 0) return;
  }
  if (!at_rest(replay_)) return;
  std::vector<Block> released;
  {
    MutexLock lock(mutex_);
    for (auto at = blocks_.begin(); at != blocks_.end();) {
      if (!at->second.destroyed || at->second.running != 0) {
        ++at;
        continue;
      }
      mapped_bytes_ -= at->second.mapped_bytes;
      --destroyed_;
      released.push_back(std::move(at->second));
      at = blocks_.erase(at);
    }
  }
  if (!released.empty() && !replay_.state().contexts().current()) replay_.state().contexts().enter_any();
  for (Block& block : released) {
    drive(replay_.driver().cuMemHostUnregister, static_cast<void*>(block.memory));
    munmap(block.memory, block.mapped_bytes);
  }
}

bool GraphMemory::write(uint64_t number, uint64_t offset, std::span<const std::byte> bytes,
                        std::span<const uint8_t> mask) {
  MutexLock lock(mutex_);
  auto found = blocks_.find(number);
  return found != blocks_.end() &&
         wire::apply_changes(found->second.memory, found->second.shadow.bytes(), offset, bytes, mask);
}

bool GraphMemory::launched(const std::vector<uint64_t>& numbers) {
  MutexLock lock(mutex_);
  for (uint64_t number : numbers) {
    auto found = blocks_.find(number);
    if (found == blocks_.end() || found->second.destroyed) return false;
  }
  for (uint64_t number : numbers) ++blocks_.find(number)->second.running;
  running_.fetch_add(1, std::memory_order_release);
  return true;
}

void GraphMemory::ended(const std::vector<uint64_t>& numbers) {
  MutexLock lock(mutex_);
  for (uint64_t number : numbers) --blocks_.find(number)->second.running;
  running_.fetch_sub(1, std::memory_order_release);
}

bool GraphMemory::take_next(Place& place, Place& of, std::vector<wire::ByteChanges>& changes) {
  MutexLock lock(mutex_);
  auto at = blocks_.lower_bound(place.number);
  if (at != blocks_.end() && at->first != place.number) place.offset = 0;
  while (at != blocks_.end() && (at->second.running == 0 || place.offset >= at->second.shadow.bytes().size())) {
    ++at;
    place.offset = 0;
  }
  if (at == blocks_.end()) return false;
  auto& [number, block] = *at;
  const uint64_t bytes = std::min<uint64_t>(block.shadow.bytes().size() - place.offset, wire::kRegionPieceBytes);
  wire::take_changes(block.memory + place.offset, block.shadow.bytes().subspan(place.offset, bytes),
                     [&](wire::ByteChanges& found) { changes.push_back(std::move(found)); });
  of = {number, place.offset};
  place = {number, place.offset + bytes};
  return true;
}

void GraphMemory::deliver() {
  if (!any_running()) return;
  MutexLock delivering(delivering_);
  std::vector<wire::ByteChanges> changes;
  for (Place place, of; take_next(place, of, changes); changes.clear()) {
    for (const wire::ByteChanges& change : changes)
      notify::graph_memory_data(replay_.outbox(),
                                {.address = of.number, .offset = of.offset + change.offset, .changed = change.mask},
                                change.bytes);
  }
}

void GraphMemory::clear() {
  MutexLock lock(mutex_);
  for (auto& [number, block] : blocks_) munmap(block.memory, block.mapped_bytes);
  blocks_.clear();
  mapped_bytes_ = 0;
}

void graph_memory_create(Replay& replay, Call& call) {
  auto params = call.message.getRoot<schema::RegionCreate>();
  uint64_t place = 0;
  GraphMemory& memory = replay.state().graph_memory();
  CUresult result =
      replay.context() ? memory.create(params.getAddress(), params.getBytes(), place) : CUDA_ERROR_INVALID_CONTEXT;
  if (result == CUDA_ERROR_OUT_OF_MEMORY) {
    memory.release_destroyed();
    if (enter_living(replay, call.header.context))
      result = memory.create(params.getAddress(), params.getBytes(), place);
  }
  SmallMessage<> message;
  auto reply = message.root<schema::GraphMemoryCreateReply>();
  reply.setResult(result);
  reply.setDeferred(replay.take_deferred());
  reply.setPlace(place);
  call.answered = true;
  replay.outbox().reply(call.header.sequence, *message);
}

void graph_memory_destroy(Replay& replay, Call& call) {
  GraphMemory& memory = replay.state().graph_memory();
  finish(replay, call, memory.destroy(call.message.getRoot<schema::RegionDestroy>().getAddress()));
  memory.release_destroyed();
}

void graph_memory_write(Replay& replay, Call& call) {
  auto params = call.message.getRoot<schema::RegionChange>();
  uint64_t bytes = call.bulk.remaining();
  auto mask = params.getChanged();
  if (bytes == 0) throw ProtocolFault{"graph_memory_write: no bulk"};
  if (mask.size() != 0 && mask.size() != wire::change_mask_bytes(bytes))
    throw ProtocolFault{"graph_memory_write: a mask of another length than the bulk"};
  std::vector<std::byte> piece(bytes);
  if (!call.bulk.read(piece)) return;
  bool written =
      replay.state().graph_memory().write(params.getAddress(), params.getOffset(), piece, {mask.begin(), mask.size()});
  finish(replay, call, written ? CUDA_SUCCESS : CUDA_ERROR_INVALID_VALUE);
}

namespace {

// The client's memory that a graph launch uses.
struct LaunchedMemory {
  std::vector<uint64_t> blocks;
  std::vector<HostRegions::Range> ranges;

  bool begin(ReplayState& state) const {
    if (!state.graph_memory().launched(blocks)) return false;
    if (state.host_regions().launched(ranges)) return true;
    state.graph_memory().ended(blocks);
    return false;
  }
  void end(ReplayState& state) const {
    state.graph_memory().ended(blocks);
    state.host_regions().ended(ranges);
  }
  // Delivers the launch's writes first.
  void deliver_and_end(ReplayState& state) const {
    if (ranges.empty()) state.graph_memory().deliver();
    else state.host_regions().deliver();
    end(state);
  }
};

// Counts the launch just made as ended once it has ended. If no event can be recorded, the executor waits for the
// stream.
void end_when_done(Replay& replay, Context& context, CUstream stream, LaunchedMemory memory) {
  PooledEvent event = context.events->take();
  CUresult result = event ? drive(replay.driver().cuEventRecord, event.get(), stream) : CUDA_ERROR_OUT_OF_MEMORY;
  if (result == CUDA_SUCCESS) {
    CUevent native = event.get();
    auto held = std::make_shared<PooledEvent>(std::move(event));
    auto done = [&replay, held, memory](CUresult) { memory.deliver_and_end(replay.state()); };
    if (replay.watcher().watch(context.native, native, done)) return;
  }
  drive(replay.driver().cuStreamSynchronize, stream);
  memory.deliver_and_end(replay.state());
}

}  // namespace

void graph_launch(Replay& replay, Call& call) {
  auto params = call.message.getRoot<schema::GraphLaunch>();
  auto blocks = params.getBlocks(), ranges = params.getRanges();
  if (blocks.size() > wire::kListItemsMax || ranges.size() > wire::kListItemsMax)
    throw ProtocolFault{"graph_launch: too many blocks"};
  if (ranges.size() % 2 != 0) throw ProtocolFault{"graph_launch: an address without a number of bytes"};
  Context* context = replay.state().contexts().current();
  void* exec = nullptr;
  CUstream stream = nullptr;
  if (!context) return finish(replay, call, CUDA_ERROR_INVALID_CONTEXT);
  if (!replay.handles().find(wire::HandleKind::graph_exec, params.getExec(), exec) ||
      !find_stream(replay, params.getStream(), stream)) {
    return finish(replay, call, CUDA_ERROR_INVALID_HANDLE);
  }
  context = replay.state().contexts().enter_stream(stream);
  LaunchedMemory memory;
  for (uint64_t number : blocks) memory.blocks.push_back(number);
  for (unsigned i = 0; i < ranges.size(); i += 2) memory.ranges.push_back({ranges[i], ranges[i + 1]});
  if (!memory.begin(replay.state())) return finish(replay, call, CUDA_ERROR_INVALID_VALUE);
  CUresult result = drive(replay.driver().cuGraphLaunch, static_cast<CUgraphExec>(exec), stream);
  if (result != CUDA_SUCCESS) memory.end(replay.state());
  else end_when_done(replay, *context, stream, std::move(memory));
  finish(replay, call, result);
}

}  // namespace gpuwire::server
