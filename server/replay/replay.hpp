// The replay: the server-side objects for a decoded call. One Replay per session, owned by the executor thread; no
// other thread touches its members unless a comment says so.
#pragma once

#include <cuda.h>

#include <chrono>
#include <cstdint>
#include <functional>
#include <memory>
#include <span>
#include <string>
#include <vector>

#include <capnp/message.h>

#include "protocol/wire/frame.hpp"
#include "protocol/wire/handle.hpp"
#include "protocol/wire/ordinals.hpp"
#include "server/base/host_memory.hpp"
#include "server/replay/stream/sync_duties.hpp"

namespace gpuwire::server {

struct DriverTable;  // generated: generated/server/driver_table.hpp, one pointer per driver function, null when the
                     // driver lacks it
class Management;    // server/management/management.hpp
class CompletionWatcher;  // completion.hpp
class Profiler;           // profiler.hpp
class ReplayState;        // replay_state.hpp

// Client handle -> the driver's. Every lookup checks kind, generation and presence. Executor thread only.
class HandleTable {
 public:
  // `account`: of the memory that the table and the driver's objects behind it take; outlives the table, null: nobody
  // counts.
  explicit HandleTable(HostMemory* account = nullptr);
  ~HandleTable();
  HandleTable(const HandleTable&) = delete;
  HandleTable& operator=(const HandleTable&) = delete;

  // False: the number is malformed, taken, of another kind or over the limit (kHandlesPerSessionMax).
  bool insert(wire::HandleKind kind, uint64_t handle, void* native);
  // An insertion was refused because the account has no room.
  bool out_of_memory() const { return out_of_memory_; }
  // The same for an object that is still being made: find() waits for it. settle() gives the result; null: none, and
  // the handle was never given out. A handle that has gone with its context meanwhile stays gone.
  bool insert_pending(wire::HandleKind kind, uint64_t handle);
  void settle(wire::HandleKind kind, uint64_t handle, void* native);
  // `await` returns when something pending may have been settled.
  void await_pending_with(std::function<void()> await) { await_pending_ = std::move(await); }
  // False: never given out, destroyed, or of another kind.
  bool find(wire::HandleKind kind, uint64_t handle, void*& native) const;
  bool erase(wire::HandleKind kind, uint64_t handle);
  size_t size() const { return size_; }
  // Newest first, for teardown.
  void for_each(wire::HandleKind kind, const std::function<void(uint64_t handle, void* native)>& visit) const;

  // Objects that are inserted from now on belong to `objects` (the frame header's number) and die with it, streams to
  // `streams`: the two differ for a green context, whose events, modules and arrays are its primary context's.
  void set_context(uint32_t objects, uint32_t streams) {
    context_ = objects;
    stream_context_ = streams;
  }
  // Forgets all that belongs to a context that was destroyed or reset: its streams, events, modules, functions, arrays,
  // textures.
  void erase_context(uint32_t context);
  // `seen` is called for each stream that is inserted from now on.
  void observe_streams(std::function<void(uint64_t handle, void* native)> seen) { stream_seen_ = std::move(seen); }

 private:
  struct Slot;
  struct Page;
  Slot* slot(wire::HandleKind kind, uint64_t handle) const;

  std::vector<std::unique_ptr<Page>> pages_[wire::kHandleKinds];
  size_t counts_[wire::kHandleKinds] = {};
  size_t size_ = 0;
  size_t page_count_ = 0;
  uint64_t insertions_ = 0;
  uint32_t context_ = 0;
  uint32_t stream_context_ = 0;
  HostCharge charge_;
  bool out_of_memory_ = false;
  std::function<void(uint64_t, void*)> stream_seen_;  // empty: nobody asks
  std::function<void()> await_pending_;               // empty: nothing is ever pending
};

// The raw bytes behind the frame being executed. All of them are consumed: bytes that the call leaves are discarded
// after it.
class BulkReader {
 public:
  virtual ~BulkReader() = default;
  virtual uint64_t remaining() const = 0;
  // Fills `out` from the connection; false: the connection is gone.
  virtual bool read(std::span<std::byte> out) = 0;
};

// Sends the answer of a call, from any thread. Replies carry the call's sequence.
class Outbox {
 public:
  virtual ~Outbox() = default;
  virtual void reply(uint64_t sequence, capnp::MessageBuilder& message, std::span<const std::byte> bulk = {}) = 0;
  virtual void notice(wire::NoticeOrdinal ordinal, capnp::MessageBuilder& message,
                      std::span<const std::byte> bulk = {}) = 0;

  // The same with bulk that belongs to `keeper`: large bulk is not copied, and its keeper lives until the client has
  // all of it.
  virtual void reply_kept(uint64_t sequence, capnp::MessageBuilder& message, std::span<const std::byte> bulk,
                          std::shared_ptr<const void> keeper) {
    reply(sequence, message, bulk);
    keeper.reset();
  }
  virtual void notice_kept(wire::NoticeOrdinal ordinal, capnp::MessageBuilder& message, std::span<const std::byte> bulk,
                           std::shared_ptr<const void> keeper) {
    notice(ordinal, message, bulk);
    keeper.reset();
  }
};

// One decoded frame.
struct Call {
  const wire::FrameHeader& header;
  capnp::MessageReader& message;
  BulkReader& bulk;
  bool answered = false;  // set by a call whose reply is sent by itself, now or later from a waiter thread
};

// A call that waits for the device. `query` answers CUDA_ERROR_NOT_READY while it has to continue; `wait` blocks until
// it is done; `finish` sends the reply, exactly once, with the result of either of them. query runs on the executor,
// wait on a waiter thread with the caller's context current, finish on whichever of the two came to the end. When many
// calls wait already, `events` are watched in place of `wait`, and finish runs on the watcher's thread: a program may
// have any number of threads, and the frame that ends a wait may be one of those behind it.
struct DeviceWait {
  std::function<CUresult()> query;  // may be empty: then it goes to a waiter at once
  std::function<CUresult()> wait;
  // On the executor: events that have all completed when the wait is over; they live until finish has run. Empty, or
  // gives none: only `wait` will do.
  std::function<std::vector<CUevent>()> events;
  std::function<void(CUresult)> finish;
};

// The account of a session's time at the server; protocol/api/session.toml has the meaning of each figure.
struct SessionTimes {
  std::chrono::nanoseconds age{}, input{}, device{}, held{}, gpu{};
  uint64_t held_count = 0;
  bool gpu_counted = false;
};

class Replay {
 public:
  virtual ~Replay() = default;
  virtual const DriverTable& driver() const = 0;
  virtual HandleTable& handles() = 0;
  virtual Outbox& outbox() = 0;

  // A call that waits: `work` runs on a waiter thread, where it makes the driver call that waits and sends the reply
  // itself. The caller's context is made current there. Never waits for a free thread; a session that has too many such
  // calls at once (kBlockedWaitersMax) ends. Executor and waiters run in CU_STREAM_CAPTURE_MODE_RELAXED: which calls a
  // capture forbids to which thread of the program is the client's to judge.
  virtual void wait_elsewhere(std::function<void()> work) = 0;

  // The same for work that waits for no device: it is no time of the device's.
  virtual void work_elsewhere(std::function<void()> work) { wait_elsewhere(std::move(work)); }

  // The native context of the frame being executed, made current on the executor thread before the call runs.
  virtual CUcontext context() const = 0;

  // Remembers the first failure of posted calls, explains it and reports it to the client
  // (NoticeOrdinal::deferred_error).
  virtual void fail_posted(const wire::FrameHeader& header, CUresult result, std::string message = {}) = 0;
  // The content of a reply's `deferred` field: the failure that no reply has reported yet, once. Any thread.
  virtual CUresult take_deferred() = 0;

  // The state of the hand-written calls from frame to frame. The worker creates it and asks it for the context of every
  // frame (ReplayState::enter), and ends it before the driver goes.
  virtual ReplayState& state() = 0;
  // Tells when device work is done. Any thread.
  virtual CompletionWatcher& watcher() = 0;
  // Has the client sent more? Then the executor stops polling for a completion and lets a waiter thread do it. Executor
  // only; cheap.
  virtual bool input_waiting() = 0;
  // How long the executor may poll for a completion.
  virtual std::chrono::microseconds poll_time() const = 0;
  // Whether waits owe the driver a synchronising call when they are over. Any thread.
  SyncDuties& sync_duties() { return sync_duties_; }
  // When it returns, all that the device has printed up to the last synchronisation has left as Output notices. Any
  // thread.
  virtual void drain_output() = 0;

  // Most waits are short: asks wait.query for up to poll_time() on the executor while the client sends nothing new,
  // then leaves the rest to a waiter thread. Sets call.answered. True: finished already.
  virtual bool poll_or_defer(Call& call, DeviceWait wait) = 0;

  // Executor: streams will wait for answers of the client. From now on calls that are `out_of_turn` may be executed by
  // another thread while the executor is kept in the driver, before frames that were sent earlier.
  virtual void expect_answers() = 0;
  // A stream waits for an answer. Any thread.
  virtual void answer_awaited() = 0;

  // The worker holds one reference to the primary context of device 0 from before the session (so that a session starts
  // fast). True once, for that device: the reference is the caller's from now on, in place of a
  // cuDevicePrimaryCtxRetain of its own.
  virtual bool take_prewarmed_primary(CUdevice device) = 0;

  // The account of the session's memory on this machine; null: nobody counts.
  virtual HostMemory* host_memory() { return nullptr; }

  // Executor only. The session's spent time so far, and a report that it has polled for a completion for this long.
  virtual SessionTimes times() const { return {}; }
  virtual void note_polled(std::chrono::nanoseconds) {}

  // For a client that asks for a profile; null: nothing can be timed here.
  virtual Profiler* profiler() { return nullptr; }

  // Of a management session; null in one that runs a program.
  virtual Management* management() { return nullptr; }

 private:
  SyncDuties sync_duties_;
};

// A frame that cannot be valid (a message of the wrong shape, a bulk of the wrong length): ends the session with this
// reason.
struct ProtocolFault {
  std::string reason;
};

// The entry of the dispatch table for an ordinal: decodes, calls, replies. Throws ProtocolFault or kj::Exception on bad
// bytes.
using ReplayFunction = void (*)(Replay& replay, Call& call);
struct ReplayEntry {
  ReplayFunction function = nullptr;
  const char* name = nullptr;
  bool posted =
      false;  // which FrameKinds may carry it: posted ones may also be called (the reply is then a schema::Result)
  bool out_of_turn = false;     // any thread may execute it, before frames sent earlier (Replay::expect_answers)
  bool any_context = false;     // executed in whatever state the frame's context is
  uint64_t bulk_bytes_max = 0;  // raw bytes that the frame may have behind it
};

// Before any of it is read: throws ProtocolFault when the frame has more raw bytes behind it than its call may carry.
inline void check_bulk(const ReplayEntry& entry, const wire::FrameHeader& header) {
  if (header.bulk_bytes <= entry.bulk_bytes_max) [[likely]]
    return;
  std::string most = entry.bulk_bytes_max ? "where " + std::to_string(entry.bulk_bytes_max) + " are the most"
                                          : "which it has no use for";
  throw ProtocolFault{"bulk of " + std::to_string(header.bulk_bytes) + " bytes, " + most};
}

// Generated (driver functions, ordinals >= kFirstDriverOrdinal); index: ordinal - kFirstDriverOrdinal.
std::span<const ReplayEntry> generated_replay_table();
// Generated (protocol/api/session.toml), by ordinal.
std::span<const ReplayEntry> session_replay_table();

}  // namespace gpuwire::server
