// The client's handles: the existing ones, their sessions, and the stub's object for each. Wire numbers, see
// protocol/wire/handle.hpp.
#pragma once

#include <atomic>
#include <cstdint>
#include <functional>

#include "protocol/threads/mutex.hpp"
#include "protocol/wire/handle.hpp"
#include "protocol/wire/limits.hpp"

namespace gpuwire::client {

class ServerSession;

// Any thread; lookups take no lock. Never destroyed: programs call the driver until their last exit handler has run.
class HandleTable {
 public:
  // Gives out a handle of something that this session has, with `object` attached. 0: kHandlesPerSessionMax of this
  // kind are in use, or no memory.
  uint64_t create(wire::HandleKind kind, ServerSession* session, void* object = nullptr) noexcept;

  // Given out as this kind and not forgotten?
  bool known(wire::HandleKind kind, uint64_t handle) const noexcept { return live_slot(kind, handle) != nullptr; }
  // The object attached to a known handle; null when the handle is unknown, too.
  void* object(wire::HandleKind kind, uint64_t handle) const noexcept {
    const Slot* slot = live_slot(kind, handle);
    return slot ? slot->object.load(std::memory_order_acquire) : nullptr;
  }
  // The session of a known handle; null when it is not known, too.
  ServerSession* session(wire::HandleKind kind, uint64_t handle) const noexcept {
    const Slot* slot = live_slot(kind, handle);
    return slot ? slot->session.load(std::memory_order_relaxed) : nullptr;
  }
  template <class State>
  State* find(wire::HandleKind kind, uint64_t handle) const noexcept {
    return static_cast<State*>(object(kind, handle));
  }
  // Attaches an object to a known handle. False: not known.
  bool attach(wire::HandleKind kind, uint64_t handle, void* object) noexcept;

  // Ends a handle; true for the one caller that ended it, who gets the attached object. A thread that looked it up a
  // moment before may still use the object: recycle objects into ones of the same type, or keep them.
  bool forget(wire::HandleKind kind, uint64_t handle, void** object = nullptr) noexcept;

  // Visits the known handles of a kind at some moment during the call; others may come and go meanwhile.
  void for_each(wire::HandleKind kind, const std::function<void(uint64_t handle, void* object)>& visit) const;
  // The same of one session.
  void for_each(wire::HandleKind kind, const ServerSession* session,
                const std::function<void(uint64_t handle, void* object)>& visit) const;

  // In the child after fork(): the locks may have been held by threads that no longer exist.
  void after_fork_in_child() noexcept;

 private:
  // tag: kLive | generation. Partner of its release stores: the acquire load in live_slot(), so that a thread that sees
  // a handle alive sees the object that was attached before.
  struct Slot {
    std::atomic<uint32_t> tag;
    uint32_t next_free;
    std::atomic<void*> object;
    // Stored before the tag.
    std::atomic<ServerSession*> session;
  };
  static constexpr uint32_t kLive = 1u << 31;
  static constexpr uint32_t kSlotsPerChunk = 1024;
  static constexpr uint32_t kChunks = wire::kHandlesPerSessionMax / kSlotsPerChunk;
  // A number is given out again only after this many others were given back: a stale handle of the program is then
  // found out rather than taken for a new one.
  static constexpr uint32_t kRestingSlots = 256;

  struct Kind {
    // Chunks are published with release and never taken back; partner: live_slot().
    std::atomic<Slot*> chunks[kChunks] = {};
    // A leaf lock.
    Mutex mutex;
    // The number of slots handed out so far. Slot 0 is never handed out, so that no handle's low 32 bits are zero.
    uint32_t next_fresh GUARDED_BY(mutex) = 0;
    uint32_t free_first GUARDED_BY(mutex) = 0, free_last GUARDED_BY(mutex) = 0, free_count GUARDED_BY(mutex) = 0;
  };

  const Slot* live_slot(wire::HandleKind kind, uint64_t handle) const noexcept {
    uint32_t index = wire::handle_index(handle);
    if (wire::handle_kind(handle) != kind || kind == wire::HandleKind::none || index / kSlotsPerChunk >= kChunks)
      return nullptr;
    const Slot* chunk = kinds_[unsigned(kind)].chunks[index / kSlotsPerChunk].load(std::memory_order_acquire);
    if (!chunk) return nullptr;
    const Slot* slot = chunk + index % kSlotsPerChunk;
    uint32_t tag = slot->tag.load(std::memory_order_acquire);
    return tag == (kLive | wire::handle_generation(handle)) ? slot : nullptr;
  }
  Slot* slot_at(Kind& kind, uint32_t index) noexcept;
  template <class Visit>
  void visit_slots(wire::HandleKind kind, Visit&& visit) const;

  Kind kinds_[wire::kHandleKinds] = {};
};

// The process's one table; in zero-initialised storage, usable at any time.
HandleTable& handles() noexcept;

}  // namespace gpuwire::client
