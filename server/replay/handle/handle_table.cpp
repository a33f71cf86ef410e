#include <algorithm>

#include "protocol/wire/limits.hpp"
#include "server/replay/replay.hpp"

namespace gpuwire::server {

namespace {

constexpr uint32_t kPageBits = 10;
constexpr uint32_t kPageSlots = 1u << kPageBits;
// A client numbers its handles densely, so pages fill up; a client with scattered numbers reaches this bound instead of
// filling the server's memory.
constexpr size_t kHandlePagesMax = wire::kHandlesPerSessionMax / kPageSlots + 256;
// The charge of a handle in the tenant's host memory: its place in the table, and the driver's own object, whose size
// is unknown.
constexpr uint64_t kHandleHostBytes = 256;

// Returns whether objects of this kind die with their context. Libraries, kernels, graphs, pools and physical
// allocations belong to no context.
bool belongs_to_context(wire::HandleKind kind) {
  using enum wire::HandleKind;
  switch (kind) {
    case stream:
    case event:
    case module:
    case function:
    case array:
    case mipmapped_array:
    case texture_object:
    case surface_object:
    case texture_reference:
    case surface_reference:
    case link_state:
    case external_memory:
    case external_semaphore:
    case graphics_resource: return true;
    default: return false;
  }
}

// The placeholder of an object that is being made. Only its address is used.
constexpr char kMark = 0;
void* pending() { return const_cast<char*>(&kMark); }

}  // namespace

struct HandleTable::Slot {
  void* native = nullptr;
  // The number of the insertion.
  uint64_t order = 0;
  uint32_t context = 0;
  uint16_t generation = 0;
  bool used = false;
};

struct HandleTable::Page {
  Slot slots[kPageSlots];
};

HandleTable::HandleTable(HostMemory* account) : charge_(account) {}
HandleTable::~HandleTable() = default;

HandleTable::Slot* HandleTable::slot(wire::HandleKind kind, uint64_t handle) const {
  if (wire::handle_kind(handle) != kind || kind == wire::HandleKind::none) return nullptr;
  auto& pages = pages_[unsigned(kind)];
  uint32_t index = wire::handle_index(handle);
  if ((index >> kPageBits) >= pages.size() || !pages[index >> kPageBits]) return nullptr;
  return &pages[index >> kPageBits]->slots[index & (kPageSlots - 1)];
}

bool HandleTable::insert(wire::HandleKind kind, uint64_t handle, void* native) {
  if (wire::handle_kind(handle) != kind || kind == wire::HandleKind::none || size_ >= wire::kHandlesPerSessionMax)
    return false;
  auto& pages = pages_[unsigned(kind)];
  uint32_t index = wire::handle_index(handle);
  if ((index >> kPageBits) >= pages.size()) pages.resize((index >> kPageBits) + 1);
  auto& page = pages[index >> kPageBits];
  if (!page) {
    if (page_count_ >= kHandlePagesMax) return false;
    out_of_memory_ = !charge_.grow(kPageSlots * kHandleHostBytes);
    if (out_of_memory_) return false;
    page = std::make_unique<Page>();
    ++page_count_;
  }
  Slot& slot = page->slots[index & (kPageSlots - 1)];
  if (slot.used) return false;
  uint32_t owner = kind == wire::HandleKind::stream ? stream_context_ : belongs_to_context(kind) ? context_ : 0;
  slot = {native, ++insertions_, owner, wire::handle_generation(handle), true};
  ++counts_[unsigned(kind)];
  ++size_;
  if (kind == wire::HandleKind::stream && stream_seen_) [[unlikely]]
    stream_seen_(handle, native);
  return true;
}

bool HandleTable::find(wire::HandleKind kind, uint64_t handle, void*& native) const {
  for (;;) {
    const Slot* found = slot(kind, handle);
    if (!found || !found->used || found->generation != wire::handle_generation(handle)) return false;
    native = found->native;
    if (native != pending()) [[likely]]
      return true;
    await_pending_();
  }
}

bool HandleTable::insert_pending(wire::HandleKind kind, uint64_t handle) { return insert(kind, handle, pending()); }

void HandleTable::settle(wire::HandleKind kind, uint64_t handle, void* native) {
  Slot* found = slot(kind, handle);
  if (!found || !found->used || found->generation != wire::handle_generation(handle) || found->native != pending())
    return;
  if (native) found->native = native;
  else erase(kind, handle);
}

bool HandleTable::erase(wire::HandleKind kind, uint64_t handle) {
  Slot* found = slot(kind, handle);
  if (!found || !found->used || found->generation != wire::handle_generation(handle)) return false;
  found->used = false;
  found->native = nullptr;
  --counts_[unsigned(kind)];
  --size_;
  return true;
}

void HandleTable::for_each(wire::HandleKind kind,
                           const std::function<void(uint64_t handle, void* native)>& visit) const {
  struct Entry {
    uint64_t order;
    uint64_t handle;
  };
  std::vector<Entry> entries;
  // Handles are dense at low numbers, so a short list is complete before every slot is read.
  const size_t count = counts_[unsigned(kind)];
  auto& pages = pages_[unsigned(kind)];
  for (size_t page = 0; page < pages.size() && entries.size() < count; ++page) {
    if (!pages[page]) continue;
    for (uint32_t i = 0; i < kPageSlots && entries.size() < count; ++i) {
      const Slot& slot = pages[page]->slots[i];
      if (slot.used && slot.native != pending())
        entries.push_back({slot.order, wire::make_handle(kind, uint32_t(page << kPageBits) | i, slot.generation)});
    }
  }
  std::sort(entries.begin(), entries.end(), [](const Entry& a, const Entry& b) { return a.order > b.order; });
  // `visit` may erase this object, and others.
  for (const Entry& entry : entries) {
    void* native = nullptr;
    if (find(kind, entry.handle, native)) visit(entry.handle, native);
  }
}

void HandleTable::erase_context(uint32_t context) {
  for (unsigned kind = 0; kind < wire::kHandleKinds; ++kind) {
    if (!belongs_to_context(wire::HandleKind(kind))) continue;
    for (auto& page : pages_[kind]) {
      if (!page) continue;
      for (Slot& slot : page->slots) {
        if (!slot.used || slot.context != context) continue;
        slot.used = false;
        slot.native = nullptr;
        --counts_[kind];
        --size_;
      }
    }
  }
}

}  // namespace gpuwire::server
