// Managed memory of one session. It is mapped at the server's addresses, and its pages are made readable and writable
// one by one. The program's writes are sent before any work that could read them; memory that the device may have
// changed is fetched when the program touches it.
#pragma once

#include <atomic>
#include <cstddef>
#include <cstdint>
#include <map>
#include <memory>
#include <vector>

#include "client_stub/driver/state/managed_memory/managed_pages.hpp"
#include "client_stub/driver/state/managed_memory/managed_segment.hpp"
#include "client_stub/driver/state/session/session_part.hpp"
#include "protocol/threads/mutex.hpp"

namespace gpuwire::client {

class ServerSession;

class ManagedMemory final : public SessionPart {
 public:
  enum class Mapped : uint8_t { yes, taken, no_memory };

  ManagedMemory(ServerSession& session, SessionParts& parts) noexcept;
  ~ManagedMemory() override;

  // Makes [base, base + bytes), which the server's driver has allocated, memory of the program. `fresh`: it holds
  // zeros. Whole pages are mapped; memory that shares a page with it must be managed memory too. Mapped::taken: memory
  // of the program lies there.
  Mapped map(uint64_t base, uint64_t bytes, bool fresh) noexcept;
  // Undoes one map() of the same base; written data are lost. Several map() calls of one range are counted.
  void unmap(uint64_t base) noexcept;
  // Undoes one map() of the range that holds `address`.
  void unmap_holder(uint64_t address) noexcept;

  bool any() const noexcept { return count_.load(std::memory_order_relaxed) != 0; }
  // The next three functions cost one load when there is no work.
  //
  // Sends the program's changes and makes all memory inaccessible. Called before work is sent. Lock: none below
  // sending_.
  void hand_over() noexcept {
    if (anything_to_hand_over()) [[unlikely]]
      hand_over_now();
  }
  // Returns whether changes are not sent, or are being sent; hand_over() then waits until they have left.
  bool anything_to_hand_over() const noexcept { return valid_.load(std::memory_order_relaxed); }
  // Notes that work was sent.
  void note_work() noexcept {
    if (valid_.load(std::memory_order_relaxed)) [[unlikely]]
      note_work_now();
  }
  // Closes memory that is only valid until the program learns that work is done, which it is about to. Any thread.
  void settle() noexcept {
    if (early_.load(std::memory_order_relaxed)) [[unlikely]]
      settle_now();
  }

  // Returns whether there is early or hidden memory, for the caller of a periodic refresh(): a program may watch memory
  // for a running kernel's writes, and a kernel for the program's, without any call.
  bool needs_refresh() const noexcept { return restless_.load(std::memory_order_relaxed); }
  void refresh() noexcept;

  // Gives the program the access that it needs to the memory at `address`. Returns false if it is not managed memory,
  // or cannot be fetched.
  bool resolve(uint64_t address, bool write) noexcept;

  // Keeps the chunk at `address` writable until release(), for a call that gets a pointer to it. Returns false if it is
  // not managed memory.
  bool hold(uint64_t address) noexcept;
  void release(uint64_t address) noexcept;

  // Returns whether `address` is in a mapped segment.
  bool holds(uint64_t address) const noexcept;

  // Opens all memory for good with its present content, because nothing can be fetched any more.
  void open_all() noexcept;
  // When the session is closed, the function opens all memory. When it is lost, the fault that finds the loss does so,
  // so that the program gets a message about its memory.
  void ended(SessionEnd how) noexcept override;
  // A child has no managed memory, because the mappings are not inherited.
  void after_fork_in_child() noexcept override;
  // Unmaps all memory before the session ends. Tests only.
  void clear() noexcept;

  ServerSession& session() const noexcept { return session_; }

 private:
  struct Extent {
    uint64_t base = 0, bytes = 0;
    uint32_t uses = 1;
  };
  struct Segment {
    std::unique_ptr<MappedPages> pages;
    std::unique_ptr<ManagedSegment> chunks;
    // The allocations of the server's driver in the segment; only their bytes are fetched.
    std::vector<Extent> extents;
  };

  void hand_over_now() noexcept;
  void note_work_now() noexcept;
  void settle_now() noexcept;
  void send_hidden() noexcept REQUIRES(sending_);
  bool fetch(uint64_t base, const ManagedSegment::Window& window, std::vector<std::byte>& out) REQUIRES(sending_);
  std::pair<uint64_t, Segment*> find(uint64_t address) noexcept REQUIRES(mutex_);
  bool add_segment(uint64_t begin, uint64_t end, bool fresh, Mapped& result) REQUIRES(mutex_);
  void note_state() noexcept REQUIRES(mutex_);
  void note_presence(bool there) noexcept REQUIRES(mutex_);

  ServerSession& session_;
  // Outermost, beside HostRegions::sending_. Held from the search for changes until they are sent, and while memory is
  // fetched, so that memory is fetched only after its changes have left. The thread that reads the connection never
  // takes it.
  Mutex sending_;
  // A leaf.
  mutable Mutex mutex_;
  // By first address.
  std::map<uint64_t, Segment> segments_ GUARDED_BY(mutex_);
  // The number of settle() calls.
  uint64_t settled_ GUARDED_BY(mutex_) = 0;
  bool fetching_ GUARDED_BY(mutex_) = false,
                 fetch_is_early_ GUARDED_BY(mutex_) = false, worked_ GUARDED_BY(mutex_) = false;
  // Changes were taken out of their chunks and have not all been sent.
  bool on_their_way_ GUARDED_BY(mutex_) = false;
  // Set for good by open_all().
  bool opened_ GUARDED_BY(mutex_) = false;
  // The session is counted among those with managed memory.
  bool present_ GUARDED_BY(mutex_) = false;
  // Written under mutex_; hints for the calls above. Relaxed: a thread that must see one of them set has itself touched
  // the memory, or has synchronised with the thread that did.
  std::atomic<size_t> count_{0};
  std::atomic<bool> valid_{false}, early_{false}, restless_{false};
};

// Returns whether all work that was sent to this server is known to be done.
bool devices_quiet(const ServerSession& session) noexcept;

}  // namespace gpuwire::client
