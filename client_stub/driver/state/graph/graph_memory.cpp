#include "client_stub/driver/state/graph/graph_memory.hpp"

#include <new>
#include <unordered_set>
#include <utility>

#include "client/session_sends.hpp"
#include "client_stub/driver/state/copy/copy_rules.hpp"
#include "client_stub/driver/state/host_memory/host_regions.hpp"
#include "client_stub/driver/state/host_memory/memory_rights.hpp"
#include "client_stub/driver/state/memory/address_map.hpp"
#include "client_stub/driver/process/process.hpp"
#include "client_stub/driver/state/session/server_session.hpp"
#include "client_stub/driver/state/host_memory/pinned_pointers.hpp"
#include "client_stub/driver/state/copy/memory_in_flight.hpp"
#include "protocol/wire/byte_changes.hpp"
#include "schema/session.capnp.h"

namespace gpuwire::client {
namespace {

// Pinned allocations up to this size become one block, so that copies of different parts share it.
constexpr uint64_t kWholeAllocationMax = 1u << 20;

bool overlap(const GraphBlock& block, uint64_t address, uint64_t bytes) {
  return address < block.base + block.bytes && block.base < address + bytes;
}

bool contains(const GraphBlock& block, uint64_t address, uint64_t bytes) {
  return address >= block.base && bytes <= block.bytes && address - block.base <= block.bytes - bytes;
}

}  // namespace

// Compares the program's memory with the server's content. Under the leaf lock.
void GraphMemory::find_changes(GraphBlock& block, uint64_t address, uint64_t bytes, std::vector<MirroredChange>& out) {
  uint64_t offset = address - block.base;
  wire::take_changes(reinterpret_cast<const std::byte*>(address), std::span(block.shadow).subspan(offset, bytes),
                     [&](wire::ByteChanges& found) {
                       session_.pinned_pointers.scan_around(block.shadow, block.base, offset + found.offset,
                                                            found.bytes.size());
                       out.push_back({block.number, offset, std::move(found)});
                     });
}

GraphBlock::~GraphBlock() { all.forget(*this); }

void GraphMemory::forget(const GraphBlock& block) noexcept {
  {
    MutexLock lock(mutex_);
    if (blocks_.erase(block.number)) ranges_.remove(block.base, block.bytes);
    count_.store(blocks_.size(), std::memory_order_relaxed);
  }
  if (!process() || !block.place || !session_.connected()) return;
  // If the frame cannot be sent, the session is over, and the block with it.
  static_cast<void>(send::post_graph_memory_destroy(session_.connection(), 0, {.address = block.number}));
}

CUresult GraphMemory::find(uint64_t address, uint64_t bytes, bool written, std::shared_ptr<GraphBlock>& out) noexcept {
  std::vector<std::shared_ptr<GraphBlock>> seen;  // released after the lock
  MutexLock lock(mutex_);
  if (!ranges_.any(address, bytes)) return CUDA_SUCCESS;
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

CUresult GraphMemory::create(const Caller& caller, uint64_t address, uint64_t bytes, std::shared_ptr<GraphBlock>& out) {
  if (!caller.session->facts().knows(uint32_t(wire::SessionOrdinal::graph_memory_create)))
    return CUDA_ERROR_NOT_SUPPORTED;
  auto block = std::make_shared<GraphBlock>(*this);
  block->base = address;
  block->bytes = bytes;
  block->shadow.resize(bytes);
  {
    MutexLock lock(mutex_);
    block->number = next_++;
  }
  uint64_t place = 0;
  CUresult result =
      send::call_graph_memory_create(*caller.session, caller.context, {.address = block->number, .bytes = bytes},
                                     [&](schema::GraphMemoryCreateReply::Reader reply) { place = reply.getPlace(); });
  if (result) return result;
  block->place = place;
  MutexLock lock(mutex_);
  ranges_.add(block->base, block->bytes);
  try {
    blocks_.emplace(block->number, block.get());
  } catch (...) {
    ranges_.remove(block->base, block->bytes);
    throw;
  }
  count_.store(blocks_.size(), std::memory_order_relaxed);
  out = std::move(block);
  return CUDA_SUCCESS;
}

CUresult GraphMemory::find_or_make(const Caller& caller, uint64_t address, uint64_t bytes, bool written,
                                   std::shared_ptr<GraphBlock>& block) {
  CUresult found = find(address, bytes, written, block);
  if (found == CUDA_SUCCESS && block) return found;
  MutexLock making(making_);
  found = find(address, bytes, written, block);
  // Only launches of destroyed graphs may still hold the conflicting blocks.
  if (found) {
    session_.in_flight.let_go();
    found = find(address, bytes, written, block);
  }
  if (found || block) return found;
  uint64_t base = address, size = bytes;
  auto range = address_map().find(address);
  if (range && is_host(range->kind) && range->contains(address, bytes) && range->bytes <= kWholeAllocationMax) {
    base = range->base;
    size = range->bytes;
  }
  if (CUresult error = create(caller, base, size, block)) return error;
  MutexLock lock(mutex_);
  block->written = block->written || written;  // another thread may have found the block by now
  return CUDA_SUCCESS;
}

CUresult GraphMemory::use(const Caller& caller, uint64_t address, uint64_t bytes, bool written, GraphUse& out,
                          uint64_t& place) noexcept try {
  std::shared_ptr<GraphBlock> block;
  CUresult found = find_or_make(caller, address, bytes, written, block);
  // Without the lock: the launches may wait for functions of the program, and other threads make blocks meanwhile.
  if (found == CUDA_ERROR_NOT_SUPPORTED && session_.in_flight.in_use(address, bytes) && synchronise_context(caller)) {
    session_.in_flight.let_go();
    found = find_or_make(caller, address, bytes, written, block);
  }
  if (found) return found;
  place = block->place + (address - block->base);
  out = {std::move(block), address, bytes, written};
  return CUDA_SUCCESS;
} catch (const std::bad_alloc&) {
  return CUDA_ERROR_OUT_OF_MEMORY;
}

uint64_t GraphMemory::home(uint64_t place) const noexcept {
  if (!any()) return 0;
  MutexLock lock(mutex_);
  for (auto& [number, block] : blocks_) {
    if (place >= block->place && place - block->place < block->bytes) return block->base + (place - block->place);
  }
  return 0;
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
  MutexLock sending(sending_);
  {
    MutexLock lock(mutex_);
    for (const GraphUse& use : uses) {
      if (use.block) find_changes(*use.block, use.address, use.bytes, changes);
    }
  }
  post_writes(caller, changes);
} catch (const std::bad_alloc&) {
  // The following launch uses the data that were sent before.
}

// The launch may have ended without the client's knowledge, and the program may have freed its memory.
void GraphMemory::push_launched(const Caller& caller) noexcept try {
  const auto launched = session_.in_flight.launched();
  if (launched.empty()) return;
  for (const auto& uses : launched) session_.host_regions.push_for_graphs(caller, uses->pinned);
  std::vector<MirroredChange> changes;
  std::unordered_set<const GraphBlock*> seen;
  MutexLock sending(sending_);
  {
    MutexLock lock(mutex_);
    for (const auto& uses : launched) {
      for (const GraphUse& use : uses->ranges) {
        if (!use.block) continue;
        GraphBlock& block = *use.block;
        if (seen.insert(&block).second && is_usable(block.base, block.bytes, Use::reading))
          find_changes(block, block.base, block.bytes, changes);
      }
    }
  }
  post_writes(caller, changes);
} catch (const std::bad_alloc&) {
  // As above.
}

BulkSink GraphMemory::sink(size_t bytes) { return mirrored_sink(incoming_, bytes); }

void GraphMemory::stored(uint64_t number, uint64_t offset, std::span<const uint8_t> mask, size_t bytes) {
  if (bytes > incoming_.size()) return;
  MutexLock lock(mutex_);
  auto found = blocks_.find(number);
  if (found == blocks_.end()) return;  // its last launch is known to have ended
  GraphBlock& block = *found->second;
  static_cast<void>(wire::apply_changes(reinterpret_cast<std::byte*>(block.base), block.shadow, offset,
                                        std::span(incoming_).first(bytes), mask));
}

}  // namespace gpuwire::client
