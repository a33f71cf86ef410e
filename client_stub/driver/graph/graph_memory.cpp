#include "client_stub/driver/graph/graph_memory.hpp"

#include <new>
#include <utility>

#include "client/session_sends.hpp"
#include "client_stub/driver/memory/address_map.hpp"
#include "client_stub/driver/session/process.hpp"
#include "client_stub/driver/session/server_session.hpp"
#include "protocol/wire/byte_changes.hpp"
#include "schema/session.capnp.h"

namespace gpuwire::client {
namespace {

// Pinned allocations up to this size are taken whole, so that copies of different parts of them meet in one block.
constexpr uint64_t kWholeAllocationMax = 1u << 20;

bool launch_done(const GraphBlock& block) {
  if (!block.context || block.launch <= block.context->done.load(std::memory_order_acquire)) return true;
  const StreamState* stream = find_stream(block.context, block.stream);
  return !stream || block.launch <= stream->done.load(std::memory_order_acquire);
}

bool overlap(const GraphBlock& block, uint64_t address, uint64_t bytes) {
  return address < block.base + block.bytes && block.base < address + bytes;
}

bool contains(const GraphBlock& block, uint64_t address, uint64_t bytes) {
  return address >= block.base && bytes <= block.bytes && address - block.base <= block.bytes - bytes;
}

}  // namespace

// The program's memory against what the server holds. Under the leaf lock.
void GraphMemory::find_changes(GraphBlock& block, uint64_t address, uint64_t bytes, std::vector<MirroredChange>& out) {
  uint64_t offset = address - block.base;
  wire::take_changes(reinterpret_cast<const std::byte*>(address), std::span(block.shadow).subspan(offset, bytes),
                     [&](wire::ByteChanges& found) {
                       session_.pinned_pointers.look_around(block.shadow, block.base, offset + found.offset,
                                                            found.bytes.size());
                       out.push_back({block.number, offset, std::move(found)});
                     });
}

GraphBlock::~GraphBlock() { all.forget(*this); }

void GraphMemory::forget(const GraphBlock& block) noexcept {
  {
    std::lock_guard lock(mutex_);
    blocks_.erase(block.number);
    count_.store(blocks_.size(), std::memory_order_relaxed);
  }
  if (!process() || !block.place || !session_.connected()) return;
  // When it cannot be sent the session is over, and the block with it.
  static_cast<void>(send::post_graph_memory_destroy(session_.connection(), 0, {.address = block.number}));
}

CUresult GraphMemory::find(uint64_t address, uint64_t bytes, bool written, std::shared_ptr<GraphBlock>& out) noexcept {
  std::vector<std::shared_ptr<GraphBlock>> seen;  // let go of after the lock
  std::lock_guard lock(mutex_);
  for (auto& [number, block] : blocks_) {
    if (!overlap(*block, address, bytes)) continue;
    auto held = block->weak_from_this().lock();
    if (!held) continue;
    if (contains(*block, address, bytes)) {
      block->written = block->written || written;
      out = std::move(held);
      return CUDA_SUCCESS;
    }
    if (block->written || written) return seen.push_back(std::move(held)), CUDA_ERROR_NOT_SUPPORTED;
    seen.push_back(std::move(held));
  }
  return CUDA_SUCCESS;
}

CUresult GraphMemory::create(const Caller& caller, uint64_t address, uint64_t bytes,
                             std::shared_ptr<GraphBlock>& out) noexcept {
  if (!caller.session->facts().knows(uint32_t(wire::SessionOrdinal::graph_memory_create)))
    return CUDA_ERROR_NOT_SUPPORTED;
  auto block = std::make_shared<GraphBlock>(*this);
  block->base = address;
  block->bytes = bytes;
  block->shadow.resize(bytes);
  {
    std::lock_guard lock(mutex_);
    block->number = next_++;
  }
  uint64_t place = 0;
  CUresult result =
      send::call_graph_memory_create(*caller.session, caller.context, {.address = block->number, .bytes = bytes},
                                     [&](schema::GraphMemoryCreateReply::Reader reply) { place = reply.getPlace(); });
  if (result) return result;
  block->place = place;
  std::lock_guard lock(mutex_);
  blocks_.emplace(block->number, block.get());
  count_.store(blocks_.size(), std::memory_order_relaxed);
  out = std::move(block);
  return CUDA_SUCCESS;
}

CUresult GraphMemory::use(const Caller& caller, uint64_t address, uint64_t bytes, bool written, GraphUse& out,
                          uint64_t& place) noexcept try {
  std::shared_ptr<GraphBlock> block;
  std::lock_guard making(making_);
  if (CUresult error = find(address, bytes, written, block)) return error;
  if (!block) {
    uint64_t base = address, size = bytes;
    auto range = address_map().find(address);
    if (range && is_host(range->kind) && range->contains(address, bytes) && range->bytes <= kWholeAllocationMax) {
      base = range->base;
      size = range->bytes;
    }
    if (CUresult error = create(caller, base, size, block)) return error;
    std::lock_guard lock(mutex_);
    block->written = written;
  }
  place = block->place + (address - block->base);
  out = {std::move(block), address, bytes};
  return CUDA_SUCCESS;
} catch (const std::bad_alloc&) {
  return CUDA_ERROR_OUT_OF_MEMORY;
}

uint64_t GraphMemory::home(uint64_t place) const noexcept {
  if (!any()) return 0;
  std::lock_guard lock(mutex_);
  for (auto& [number, block] : blocks_) {
    if (place >= block->place && place - block->place < block->bytes) return block->base + (place - block->place);
  }
  return 0;
}

bool GraphMemory::being_written(uint64_t address, uint64_t bytes) const noexcept {
  if (!any()) return false;
  std::lock_guard lock(mutex_);
  for (auto& [number, block] : blocks_) {
    if (block->written && overlap(*block, address, bytes) && !launch_done(*block)) return true;
  }
  return false;
}

namespace {

void post_writes(const Caller& caller, const std::vector<MirroredChange>& changes) {
  post_changes(changes, [&](const wire::message::RegionChange& change, const Bulk& bulk) {
    return send::post_graph_memory_write(*caller.session, caller.context, change, bulk);
  });
}

}  // namespace

void GraphMemory::push(const Caller& caller, std::span<const GraphUse> uses) noexcept try {
  std::vector<MirroredChange> changes;
  std::lock_guard sending(sending_);
  {
    std::lock_guard lock(mutex_);
    for (const GraphUse& use : uses) find_changes(*use.block, use.address, use.bytes, changes);
  }
  post_writes(caller, changes);
} catch (const std::bad_alloc&) {
  // The launch that follows finds what was sent before.
}

void GraphMemory::push_launched(const Caller& caller) noexcept try {
  if (!any()) return;
  std::vector<MirroredChange> changes;
  std::lock_guard sending(sending_);
  {
    std::lock_guard lock(mutex_);
    for (auto& [number, block] : blocks_) {
      if (!launch_done(*block)) find_changes(*block, block->base, block->bytes, changes);
    }
  }
  post_writes(caller, changes);
} catch (const std::bad_alloc&) {
  // As above.
}

void GraphMemory::note_launch(const Caller& caller, std::span<const GraphUse> uses, uint64_t stream,
                              uint64_t sequence) noexcept {
  std::lock_guard lock(mutex_);
  for (const GraphUse& use : uses) {
    use.block->context = caller.state;
    use.block->stream = stream;
    use.block->launch = sequence;
  }
}

BulkSink GraphMemory::sink(size_t bytes) { return mirrored_sink(incoming_, bytes); }

void GraphMemory::stored(uint64_t number, uint64_t offset, std::span<const uint8_t> mask, size_t bytes) {
  if (bytes > incoming_.size()) return;
  std::lock_guard lock(mutex_);
  auto found = blocks_.find(number);
  if (found == blocks_.end()) return;  // its last graph has just been destroyed
  GraphBlock& block = *found->second;
  static_cast<void>(wire::apply_changes(reinterpret_cast<std::byte*>(block.base), block.shadow, offset,
                                        std::span(incoming_).first(bytes), mask));
}

}  // namespace gpuwire::client
