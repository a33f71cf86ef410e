// The program's memory that work in flight still reads or writes, and work that waits for an action of the program.
// Code that reads a source early, frees memory, unregisters it or maps it for the device asks here.
#pragma once

#include <atomic>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <unordered_map>
#include <vector>

#include "client_stub/driver/state/call/caller.hpp"
#include "client_stub/driver/state/copy/range_counts.hpp"
#include "client_stub/driver/state/graph/graph_memory.hpp"
#include "client_stub/driver/state/session/session_part.hpp"
#include "protocol/threads/mutex.hpp"

namespace gpuwire::client {

class ServerSession;
struct ContextState;
struct StreamState;

// The work that a frame has sent to a stream. It has ended when its stream or its context has completed the frame.
struct SentWork {
  const ContextState* context = nullptr;
  const StreamState* stream = nullptr;
  // The stream's; its state may be another stream's by now.
  uint64_t handle = 0;
  // The stream and the NULL stream wait for each other.
  bool blocking = false;
  uint64_t sequence = 0;

  bool known_done() const noexcept;
};

// The reasons for which work may wait, and with it all later work of its stream.
enum class Awaits : uint8_t {
  nothing = 0,
  functions = 1,  // functions of the program in graphs, which may change memory and then return
  callbacks = 2,  // the same, sent by themselves: till the last has returned (HostCallbacks)
  program = 4,  // a word that the program writes at a time of its choosing: nobody may wait for that work in its place
};
constexpr Awaits operator|(Awaits a, Awaits b) noexcept { return Awaits(uint8_t(a) | uint8_t(b)); }
constexpr bool has(Awaits all, Awaits one) noexcept { return (uint8_t(all) & uint8_t(one)) != 0; }

// The memory in flight of one session. Any thread; one leaf lock. A program that has neither graphs with copies nor
// such work pays one atomic load for each question. Copies from the device that are under way are entered in
// PendingCopies, which knows when their last byte is there; the questions are about those, too.
class MemoryInFlight final : public SessionPart {
 public:
  MemoryInFlight(ServerSession& session, SessionParts& parts) noexcept : SessionPart(parts), session_(session) {}

  using Uses = std::shared_ptr<const GraphUses>;

  // A piece of work on its way to a stream. It is entered before its frame leaves, so before any effect of the frame.
  // It holds the server's blocks that it uses until it has ended.
  class Sending {
   public:
    // `uses` may be null: no memory that is known here. May throw std::bad_alloc.
    Sending(const Caller& caller, uint64_t wire_stream, Uses uses, Awaits awaits);
    Sending(const Sending&) = delete;
    Sending& operator=(const Sending&) = delete;
    ~Sending();
    // Called by the function that writes the frame, or behind it if other threads cannot see the difference.
    void sent(uint64_t sequence) noexcept { sequence_ = sequence, note(); }

   private:
    void note() noexcept;

    MemoryInFlight& all_;
    SentWork work_;
    Uses uses_;
    Awaits awaits_;
    uint64_t sequence_ = 0;
    bool entered_ = false;
  };

  // The stream has been sent this frame, which stands for that.
  void note_standing(const Caller& caller, uint64_t wire_stream, uint64_t sequence, Awaits awaits) noexcept;
  // The stream waits from this frame on for other streams of its session: it stands where they do.
  void note_join(const Caller& caller, uint64_t wire_stream, uint64_t sequence) noexcept {
    if (standing_count_.load(std::memory_order_relaxed) != 0) [[unlikely]]
      note_standing(caller, wire_stream, sequence, standing());
  }

  // Is any of these bytes still to be written by work that was sent?
  bool being_written(uint64_t address, uint64_t bytes) noexcept { return used(address, bytes, true); }
  // Or to be read from where they are?
  bool in_use(uint64_t address, uint64_t bytes) noexcept { return used(address, bytes, false); }
  // Is there memory of the program at all that work under way is to write?
  bool any_writes() noexcept;
  // The reasons for which work that is sent to the stream now may have to wait.
  Awaits ahead_of(const Caller& caller, uint64_t wire_stream) noexcept;
  // The reasons for which any work in flight may wait.
  Awaits standing() noexcept;

  // The memory that launches in flight use.
  std::vector<Uses> launched();
  // Releases completed work. Called before a stream ends, while its state is still available.
  void let_go() noexcept;

  // Nothing arrives any more.
  void ended(SessionEnd how) noexcept override;
  void after_fork_in_child() noexcept override {}  // a child does not use it

 private:
  struct Launched {
    Uses uses;
    // Launches of one executable graph run one after the other.
    SentWork newest;
    unsigned unsent = 0;
  };
  struct Standing {
    // In its stream.
    SentWork newest;
    unsigned unsent = 0;
    Awaits awaits = Awaits::nothing;
  };
  bool used(uint64_t address, uint64_t bytes, bool written) noexcept;
  Awaits still_to_come(Awaits all) const noexcept;
  bool holds(uint64_t address, uint64_t bytes, bool written) const noexcept REQUIRES(mutex_);
  void add(const Uses& uses) REQUIRES(mutex_);
  void remove(const GraphUses& uses) noexcept REQUIRES(mutex_);
  Standing& standing_in(const SentWork& work) REQUIRES(mutex_);
  void drop_done_launches(std::vector<Uses>& dropped) noexcept REQUIRES(mutex_);
  void drop_done_standing() noexcept REQUIRES(mutex_);
  void count() noexcept REQUIRES(mutex_);

  ServerSession& session_;
  mutable Mutex mutex_;
  std::unordered_map<const GraphUses*, Launched> launched_ GUARDED_BY(mutex_);
  // One for each stream with such work, few.
  std::vector<Standing> standing_ GUARDED_BY(mutex_);
  // The counts of launched_.
  RangeCounts written_ GUARDED_BY(mutex_), read_ GUARDED_BY(mutex_);
  // Releases completed launches from this number on; grows with the work in flight.
  size_t poll_at_ GUARDED_BY(mutex_) = 0;
  bool over_ GUARDED_BY(mutex_) = false;
  // Sizes of the two, written under the lock. Relaxed: a thread that asks about its own earlier work sees its own
  // write, and of other threads' work it can only know by synchronising with them.
  std::atomic<size_t> launched_count_{0}, standing_count_{0};
};

}  // namespace gpuwire::client
