// Managed memory of one session: mapped at the server's addresses, readable and writable page by page. The program's
// writes go to the server before any work that could read them; memory that the device may have changed is fetched when
// the program touches it.
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
  // Undoes one map() of the same base; written data are lost. Mapped again, the same range is counted.
  void unmap(uint64_t base) noexcept;
  // The same by any address in the range.
  void unmap_holder(uint64_t address) noexcept;

  bool any() const noexcept { return count_.load(std::memory_order_relaxed) != 0; }
  // The next three cost one load when there is no work.
  //
  // Before work is sent: the program's changes go first, and everything becomes inaccessible. No lock below sending_ is
  // held.
  void hand_over() noexcept {
    if (anything_to_hand_over()) [[unlikely]]
      hand_over_now();
  }
  // Has anything been written that is not sent, or is it on its way? hand_over() then waits until it has left.
  bool anything_to_hand_over() const noexcept { return valid_.load(std::memory_order_relaxed); }
  // After work was sent.
  void note_work() noexcept {
    if (valid_.load(std::memory_order_relaxed)) [[unlikely]]
      note_work_now();
  }
  // The program is about to learn that work is done. Any thread.
  void settle() noexcept {
    if (early_.load(std::memory_order_relaxed)) [[unlikely]]
      settle_now();
  }

  // Is there early or hidden memory? For the caller of a periodic refresh(): a program may watch memory for a running
  // kernel's writes, and a kernel for the program's, without any call.
  bool needs_refresh() const noexcept { return restless_.load(std::memory_order_relaxed); }
  void refresh() noexcept;

  // Gives the memory at `address` the access that the program needs. False: it is no managed memory, or cannot be
  // fetched.
  bool resolve(uint64_t address, bool write) noexcept;

  // Keeps the chunk at `address` writable until it is released, for a call that is given a pointer to it. False: it is
  // no managed memory.
  bool hold(uint64_t address) noexcept;
  void release(uint64_t address) noexcept;

  // Is `address` in a mapped segment?
  bool holds(uint64_t address) const noexcept;

  // The memory can no longer be brought: everything is opened as it is now, and stays so.
  void open_all() noexcept;
  // Closed: open_all(). Lost: the same happens at the fault that finds the loss, so that the program gets a message
  // about its memory.
  void ended(SessionEnd how) noexcept override;
  // A child has none: the mappings are not inherited.
  void after_fork_in_child() noexcept override;
  // Everything is unmapped, before the session goes. Tests only.
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
    std::vector<Extent> extents;  // allocations of the server's driver that lie in it: only their bytes are asked for
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
  // Outermost, beside HostRegions::sending_: held from the search for changes until they are sent, and while memory is
  // fetched, so that nothing is fetched before the changes to it have left. The thread that reads the connection never
  // takes it.
  Mutex sending_;
  // A leaf.
  mutable Mutex mutex_;
  std::map<uint64_t, Segment> segments_ GUARDED_BY(mutex_);  // by first address
  uint64_t settled_ GUARDED_BY(mutex_) = 0;                  // counts settle()
  bool fetching_ GUARDED_BY(mutex_) = false,
                 fetch_is_early_ GUARDED_BY(mutex_) = false, worked_ GUARDED_BY(mutex_) = false;
  bool on_their_way_ GUARDED_BY(mutex_) = false;  // changes were taken out of their chunks, and have not all been sent
  bool opened_ GUARDED_BY(mutex_) = false;        // for good, since open_all()
  bool present_ GUARDED_BY(mutex_) = false;       // counted among the sessions that have managed memory
  // Written under mutex_; hints for the calls above. Relaxed: a thread that must see one of them set has itself touched
  // the memory, or has synchronised with the thread that did.
  std::atomic<size_t> count_{0};
  std::atomic<bool> valid_{false}, early_{false}, restless_{false};
};

// Is all the work that was sent to this server known to be done?
bool devices_quiet(const ServerSession& session) noexcept;

}  // namespace gpuwire::client
