#include "client_stub/driver/state/handle/handle_table.hpp"

#include <cstdlib>
#include <new>
#include <type_traits>

namespace gpuwire::client {

static_assert(std::is_trivially_destructible_v<HandleTable>);
static_assert(wire::kHandlesPerSessionMax <= 1u << wire::kHandleIndexBits);

HandleTable& handles() noexcept {
  static constinit HandleTable table{};
  return table;
}

HandleTable::Slot* HandleTable::slot_at(Kind& kind, uint32_t index) noexcept {
  std::atomic<Slot*>& place = kind.chunks[index / kSlotsPerChunk];
  Slot* chunk = place.load(std::memory_order_relaxed);
  if (!chunk) {
    chunk = static_cast<Slot*>(std::calloc(kSlotsPerChunk, sizeof(Slot)));
    if (!chunk) return nullptr;
    place.store(chunk, std::memory_order_release);
  }
  return chunk + index % kSlotsPerChunk;
}

uint64_t HandleTable::create(wire::HandleKind kind_name, ServerSession* session, void* object) noexcept {
  Kind& kind = kinds_[unsigned(kind_name)];
  MutexLock lock(kind.mutex);
  uint32_t index;
  Slot* slot;
  if (kind.free_count > kRestingSlots || (kind.free_count > 0 && kind.next_fresh + 1 >= wire::kHandlesPerSessionMax)) {
    index = kind.free_first;
    slot = slot_at(kind, index);
    kind.free_first = slot->next_free;
    --kind.free_count;
  } else {
    if (kind.next_fresh + 1 >= wire::kHandlesPerSessionMax) return 0;
    index = kind.next_fresh + 1;
    slot = slot_at(kind, index);
    if (!slot) return 0;
    kind.next_fresh = index;
  }
  uint16_t generation = uint16_t(slot->tag.load(std::memory_order_relaxed) + 1);
  slot->object.store(object, std::memory_order_relaxed);
  slot->session.store(session, std::memory_order_relaxed);
  slot->tag.store(kLive | generation, std::memory_order_release);
  return wire::make_handle(kind_name, index, generation);
}

bool HandleTable::attach(wire::HandleKind kind, uint64_t handle, void* object) noexcept {
  auto* slot = const_cast<Slot*>(live_slot(kind, handle));
  if (!slot) return false;
  slot->object.store(object, std::memory_order_release);
  return true;
}

bool HandleTable::forget(wire::HandleKind kind_name, uint64_t handle, void** object) noexcept {
  auto* slot = const_cast<Slot*>(live_slot(kind_name, handle));
  if (!slot) return false;
  Kind& kind = kinds_[unsigned(kind_name)];
  MutexLock lock(kind.mutex);
  uint32_t expected = kLive | wire::handle_generation(handle);
  if (slot->tag.load(std::memory_order_relaxed) != expected) return false;
  if (object) *object = slot->object.load(std::memory_order_relaxed);
  slot->object.store(nullptr, std::memory_order_relaxed);
  slot->tag.store(wire::handle_generation(handle), std::memory_order_release);
  uint32_t index = wire::handle_index(handle);
  if (kind.free_count == 0) {
    kind.free_first = index;
  } else {
    slot_at(kind, kind.free_last)->next_free = index;
  }
  kind.free_last = index;
  ++kind.free_count;
  return true;
}

template <class Visit>
void HandleTable::visit_slots(wire::HandleKind kind_name, Visit&& visit) const {
  const Kind& kind = kinds_[unsigned(kind_name)];
  for (uint32_t chunk_index = 0; chunk_index < kChunks; ++chunk_index) {
    const Slot* chunk = kind.chunks[chunk_index].load(std::memory_order_acquire);
    if (!chunk) return;
    for (uint32_t i = 0; i < kSlotsPerChunk; ++i) {
      uint32_t tag = chunk[i].tag.load(std::memory_order_acquire);
      if (tag & kLive) visit(wire::make_handle(kind_name, chunk_index * kSlotsPerChunk + i, uint16_t(tag)), chunk[i]);
    }
  }
}

void HandleTable::for_each(wire::HandleKind kind, const std::function<void(uint64_t, void*)>& visit) const {
  visit_slots(kind,
              [&](uint64_t handle, const Slot& slot) { visit(handle, slot.object.load(std::memory_order_acquire)); });
}

void HandleTable::for_each(wire::HandleKind kind, const ServerSession* session,
                           const std::function<void(uint64_t, void*)>& visit) const {
  visit_slots(kind, [&](uint64_t handle, const Slot& slot) {
    if (slot.session.load(std::memory_order_relaxed) != session) return;
    visit(handle, slot.object.load(std::memory_order_acquire));
  });
}

void HandleTable::after_fork_in_child() noexcept {
  for (Kind& kind : kinds_) new (&kind.mutex) Mutex;
}

}  // namespace gpuwire::client
