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
#include "server/replay/sync_duties.hpp"

namespace gpuwire::server {

// Generated: generated/server/driver_table.hpp has one pointer for each driver function, null if the driver lacks the
// function.
struct DriverTable;
class Management;         // server/management/management.hpp
class CompletionWatcher;  // completion.hpp
class Profiler;           // profiler.hpp
class ReplayState;        // replay_state.hpp

// The table from the client's handles to the driver's objects. Every look-up checks kind, generation and presence.
// Executor thread only.
class HandleTable {
 public:
  // `account`: is charged for the memory of the table and of the driver's objects; outlives the table; null: nothing is
  // charged.
  explicit HandleTable(HostMemory* account = nullptr);
  ~HandleTable();
  HandleTable(const HandleTable&) = delete;
  HandleTable& operator=(const HandleTable&) = delete;

  // Returns false if the number is malformed, taken, of another kind or over the limit (kHandlesPerSessionMax).
  bool insert(wire::HandleKind kind, uint64_t handle, void* native);
  // Returns whether an insertion was refused because the account has no room.
  bool out_of_memory() const { return out_of_memory_; }
  // Inserts the handle of an object that is still being made: find() waits for it. settle() sets the object; null:
  // there is none, and the handle becomes unknown. A handle that was erased with its context meanwhile stays erased.
  bool insert_pending(wire::HandleKind kind, uint64_t handle);
  void settle(wire::HandleKind kind, uint64_t handle, void* native);
  // Sets the function by which find() waits: it returns once a pending handle may have been settled.
  void await_pending_with(std::function<void()> await) { await_pending_ = std::move(await); }
  // Returns false if the handle was never given out, was destroyed, or is of another kind.
  bool find(wire::HandleKind kind, uint64_t handle, void*& native) const;
  bool erase(wire::HandleKind kind, uint64_t handle);
  size_t size() const { return size_; }
  // Visits the handles of a kind, newest first, as teardown needs.
  void for_each(wire::HandleKind kind, const std::function<void(uint64_t handle, void* native)>& visit) const;

  // Objects that are inserted from now on belong to the context `objects` (the frame header's number) and die with it;
  // streams belong to `streams`. The two differ for a green context, whose events, modules and arrays belong to its
  // primary context.
  void set_context(uint32_t objects, uint32_t streams) {
    context_ = objects;
    stream_context_ = streams;
  }
  // Erases the handles of a context that was destroyed or reset: its streams, events, modules, functions, arrays,
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
  // May be empty.
  std::function<void(uint64_t, void*)> stream_seen_;
  // Empty if no handle is ever pending.
  std::function<void()> await_pending_;
};

// The raw bytes that follow the frame being executed. Bytes that the call does not read are discarded after it.
class BulkReader {
 public:
  virtual ~BulkReader() = default;
  virtual uint64_t remaining() const = 0;
  // Fills `out` from the connection. Returns false if the connection is gone.
  virtual bool read(std::span<std::byte> out) = 0;
};

// Sends the answer of a call, from any thread. Replies carry the call's sequence.
class Outbox {
 public:
  virtual ~Outbox() = default;
  virtual void reply(uint64_t sequence, capnp::MessageBuilder& message, std::span<const std::byte> bulk = {}) = 0;
  virtual void notice(wire::NoticeOrdinal ordinal, capnp::MessageBuilder& message,
                      std::span<const std::byte> bulk = {}) = 0;

  // reply() with bulk that `keeper` owns: large bulk is not copied, and the keeper lives until the client has all of
  // it.
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
  // Set by a call that sends its reply itself, now or later from another thread.
  bool answered = false;
};

// A call that waits for the device. `query` returns CUDA_ERROR_NOT_READY while the work is unfinished; `wait` blocks
// until the work is done; `finish` sends the reply, exactly once, with the result of `query` or `wait`. `query` runs on
// the executor, `wait` on a waiter thread with the caller's context current, and `finish` on the thread that found the
// work done. When many calls wait already, the watcher polls `events` instead of `wait`, and `finish` runs on the
// watcher's thread: a program may have any number of waiting threads, and a later frame may be the one that ends a
// wait.
struct DeviceWait {
  // If this function is empty, a waiter takes the call at once.
  std::function<CUresult()> query;
  std::function<CUresult()> wait;
  // Executor. Returns events that have all completed when the wait is over; they live until `finish` has run. If this
  // function is empty or returns no events, only `wait` can be used.
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

  // Runs `work` on a waiter thread, with the caller's context current; `work` makes the blocking driver call and sends
  // the reply. The call never waits for a free thread; a session with too many such calls at once (kBlockedWaitersMax)
  // ends. Executor and waiters run in CU_STREAM_CAPTURE_MODE_RELAXED: the client decides which calls a capture forbids
  // to which thread of the program.
  virtual void wait_elsewhere(std::function<void()> work) = 0;

  // wait_elsewhere() for work that does not wait for the device, so its time does not count as device time.
  virtual void work_elsewhere(std::function<void()> work) { wait_elsewhere(std::move(work)); }

  // The native context of the frame being executed, made current on the executor thread before the call runs.
  virtual CUcontext context() const = 0;

  // Remembers the first failure of posted calls, explains it and reports it to the client
  // (NoticeOrdinal::deferred_error).
  virtual void fail_posted(const wire::FrameHeader& header, CUresult result, std::string message = {}) = 0;
  // Returns the failure that no reply has reported yet, for a reply's `deferred` field, and clears it. Any thread.
  virtual CUresult take_deferred() = 0;

  // The state of the hand-written calls from frame to frame. The worker creates it, calls ReplayState::enter for every
  // frame, and ends it before the driver is unloaded.
  virtual ReplayState& state() = 0;
  // Reports completed device work. Any thread.
  virtual CompletionWatcher& watcher() = 0;
  // Returns whether the client has sent more frames. The executor then stops polling for a completion and leaves this
  // to a waiter thread. Executor only; cheap.
  virtual bool input_waiting() = 0;
  // Returns the time for which the executor may poll for a completion.
  virtual std::chrono::microseconds poll_time() const = 0;
  // Returns the synchronising calls that waits owe the driver when they are over (sync_duties.hpp). Any thread.
  SyncDuties& sync_duties() { return sync_duties_; }
  // Sends all that the device has printed up to the last synchronisation as Output notices. Any thread.
  virtual void drain_output() = 0;

  // Polls wait.query on the executor for up to poll_time() while the client sends nothing new, because most waits are
  // short; then leaves the wait to a waiter thread. Sets call.answered. Returns whether the wait is over.
  virtual bool poll_or_defer(Call& call, DeviceWait wait) = 0;

  // Executor: declares that streams will wait for answers of the client. From now on another thread may execute
  // `out_of_turn` calls while the executor is blocked in the driver, before frames that were sent earlier.
  virtual void expect_answers() = 0;
  // Declares that a stream waits for an answer of the client. Any thread.
  virtual void answer_awaited() = 0;

  // Takes over the worker's early reference to the primary context of device 0, which lets a session start fast.
  // Returns true once, for that device: the caller then owns the reference and needs no cuDevicePrimaryCtxRetain of its
  // own.
  virtual bool take_prewarmed_primary(CUdevice device) = 0;

  // The account of the session's host memory; null: nothing is charged.
  virtual HostMemory* host_memory() { return nullptr; }

  // The session's times so far, and a report of time spent polling for a completion. Executor only.
  virtual SessionTimes times() const { return {}; }
  virtual void note_polled(std::chrono::nanoseconds) {}

  // The profiler for a client that requests a profile; null: the server cannot time work.
  virtual Profiler* profiler() { return nullptr; }

  // The NVML side of a management session; null in a session that runs a program.
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
  // The frames that may carry the call: a posted call may also be called (the reply is then a schema::Result).
  bool posted = false;
  // Any thread may execute the call, before frames that were sent earlier (Replay::expect_answers).
  bool out_of_turn = false;
  // The call is executed in any state of the frame's context.
  bool any_context = false;
  // The raw bytes that the frame may have behind it.
  uint64_t bulk_bytes_max = 0;
};

// Throws ProtocolFault if more raw bytes follow the frame than its call may carry. Called before any of them is read.
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
