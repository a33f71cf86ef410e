// One session: the executor that takes a client's frames in order and replays them.
#pragma once

#include <cuda.h>

#include <array>
#include <atomic>
#include <chrono>
#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <string>

#include <tl/expected.hpp>

#include "protocol/threads/mutex.hpp"
#include "protocol/transport/stream.hpp"
#include "server/replay/replay.hpp"
#include "server/replay/session/replay_state.hpp"
#include "server/ipc/end_cause.hpp"
#include "server/driver/evictable/eviction.hpp"
#include "server/worker/connection/frame_source.hpp"
#include "server/worker/connection/link_outbox.hpp"
#include "server/worker/session/output_capture.hpp"
#include "server/worker/session/polling_watcher.hpp"
#include "server/worker/session/quiescence.hpp"
#include "server/worker/connection/out_of_order_reader.hpp"
#include "server/worker/session/waiter_pool.hpp"

namespace gpuwire::server {

class Gate;  // server/gate/gate.hpp

// The entries of all calls, by ordinal; null for an unknown one.
using CallTable = std::array<const ReplayEntry*, wire::kOrdinalMax>;
CallTable make_call_table(std::span<const ReplayEntry> session_calls, std::span<const ReplayEntry> driver_calls);

struct SessionEnd {
  EndCause cause = EndCause::finished;
  // The reason, in one line.
  std::string reason;
  // Used with EndCause::stopped.
  StopKind stop = StopKind::ended;
};

// The dependencies of a session; all of them outlive the session.
struct WorkerSessionDeps {
  // The session's link, with a connection.
  link::Link* link = nullptr;
  // The figures of the connection; with null, nothing is counted.
  LinkCounters* counters = nullptr;
  const DriverTable* driver = nullptr;
  const CallTable* calls = nullptr;
  // The message of build_welcome(); the session fills in its id.
  capnp::MallocMessageBuilder* welcome = nullptr;
  std::array<uint8_t, 16> id{};
  std::array<uint8_t, wire::kResumeSecretBytes> resume_secret{};
  // The time for which the session stays without a connection. With 0 the session ends with its connection.
  uint32_t resume_grace_ms = 0;
  // The same time after a connection that was closed and not lost.
  uint32_t hang_up_grace_ms = 0;
  // The number of further connections for bulk that the client may open; below 2: none.
  unsigned lanes_max = 0;
  // Decides, by the client's description of its end, whether the connection may fail unnoticed and thus needs
  // heartbeats. Called once, if the session outlives its connection and the client supports heartbeats. Null: no
  // heartbeats.
  std::function<bool(const transport::ConnectionEnd& client)> wants_heartbeats;
  // Called once, by begin(), directly before Welcome is sent: from then on the client may lose its connection and
  // reconnect.
  std::function<void()> welcoming = {};
  // Gives the prewarmed primary context of the first device to the session (Replay::take_prewarmed_primary). Returns
  // false if there is none. Called once, by begin(), because the request to the broker is answered only once the
  // watchdog runs.
  std::function<bool()> claim_primary;
  // The account of the session's host memory; with null, nothing is charged.
  HostMemory* host_memory = nullptr;
  // The number of cores that the process may use.
  unsigned cores = 1;
  // The settings of the replay. The tenant is that of the authentication; if it is empty, the client's key identifies
  // the tenant.
  SessionSettings settings;
  // Called once, before the first call; `tenant` is empty if it is unknown. An error ends the session.
  std::function<tl::expected<void, std::string>(const std::string& tenant)> tenant_known;
  // Set in a management session.
  Management* management = nullptr;
  // The driver's lines on the process's standard output and error go to the client.
  bool captures_output = true;
  // The gate before the driver's functions; may be null.
  Gate* gate = nullptr;
  // Notify the broker: `quiet` answers its request to rest, and `return_wanted` reports that a resting session's client
  // needs the driver.
  std::function<void(const std::string& why_not)> quiet = [](const std::string&) {};
  std::function<void()> return_wanted = [] {};
  // Moves the session's evictable blocks; null: it has none.
  Eviction* eviction = nullptr;
  // Notifies the broker of a move that it has ordered.
  std::function<void(bool back, const EvictionOutcome&)> blocks_moved = [](bool, const EvictionOutcome&) {};
  // The profiler for a client that requests a profile; with null, work cannot be timed.
  Profiler* profiler = nullptr;
};

// The client's description of itself; for logs only.
struct ClientFacts {
  std::string release, program, host;
  uint32_t process_id = 0;
};

class Session final : public Replay {
 public:
  explicit Session(WorkerSessionDeps parts);
  ~Session() override;

  // Does the handshake. Returns the reason if there is no session; the client has received it.
  std::optional<SessionEnd> begin();
  const ClientFacts& client() const { return client_; }
  // After begin(): returns whether the session outlives its connection.
  bool resumable() const { return resumable_; }
  // After begin(): returns whether both sides send heartbeats.
  bool heartbeats() const { return heartbeats_; }
  // Returns the number of lanes that the session may have. Any thread.
  unsigned lanes() const { return lanes_.load(std::memory_order_relaxed); }
  // Has all bytes up to the connection's end read, even while the executor is blocked. Called when the client has
  // closed its side. Any thread.
  void connection_hung_up();
  // Has the out-of-order reader read the client's bytes if the executor has been in one call since the last check. One
  // thread.
  void poll_executor();
  // Called when the session has a new connection. Any thread.
  void connection_attached() { hung_up_.store(false, std::memory_order_relaxed); }
  // Returns the object for the broker's orders about the session's rest. Any thread.
  Quiescence& quiescence() { return quiescence_; }
  // Executes frames until the end of the session. If the server ends the session, the client gets the reason. Called on
  // the thread that called begin().
  SessionEnd run();
  // Releases all objects of the session in the driver. Returns false if the device still has work, or the session is
  // suspended: only the process's end frees the objects then, and no thread may call the driver or wait for a thread
  // that does.
  bool release();

  // Sends a line for the standard error of the client's program; the line is lost if the client reads nothing. Any
  // thread, any time.
  void log_stderr(std::string_view line) { capture_.log_stderr(line); }
  // Ends the session soon, whatever it is doing except a driver call that does not return. Any thread, any time.
  void stop(EndCause cause, std::string reason, StopKind kind = StopKind::ended);

  const DriverTable& driver() const override { return *parts_.driver; }
  HandleTable& handles() override { return handles_; }
  Outbox& outbox() override { return outbox_; }
  ReplayState& state() override { return *state_; }
  CompletionWatcher& watcher() override { return watcher_; }
  void wait_elsewhere(std::function<void()> work) override;
  void work_elsewhere(std::function<void()> work) override;
  CUcontext context() const override { return context_; }
  void fail_posted(const wire::FrameHeader& header, CUresult result, std::string message = {}) override;
  CUresult take_deferred() override;
  bool input_waiting() override { return source_.input_pending(); }
  std::chrono::microseconds poll_time() const override { return poll_time_; }
  void drain_output() override { capture_.drain(); }
  bool poll_or_defer(Call& call, DeviceWait wait) override;
  bool take_prewarmed_primary(CUdevice device) override;
  void expect_answers() override { out_of_order_reader_.start(); }
  void answer_awaited() override { out_of_order_reader_.awake(); }
  HostMemory* host_memory() override { return parts_.host_memory; }
  Profiler* profiler() override { return parts_.profiler; }
  Management* management() override { return parts_.management; }
  SessionTimes times() const override;
  void note_polled(std::chrono::nanoseconds spent) override { polled_ += spent; }

 private:
  // Each function returns the session's end if it has ended.
  std::optional<SessionEnd> read_hello();
  std::optional<SessionEnd> execute();
  std::optional<SessionEnd> execute_call();
  void dispatch(const ReplayEntry& entry, Call& call);
  const ReplayEntry* find_entry(uint32_t ordinal) const;
  OutOfOrderReader::Parts out_of_order_reader_parts();
  LinkOutbox::Hooks outbox_hooks();
  bool watch_instead(const DeviceWait& wait);
  void run_elsewhere(std::function<void()> work, std::atomic<int64_t>& spent_ns);
  std::string why_not_quiet();
  std::optional<SessionEnd> await_return();
  // The steps of Quiescence: the end of the rest, and the broker's order to move the evictable blocks.
  void go_on();
  void move_blocks(bool back);
  SessionEnd connection_ended();
  void notify_ending(const SessionEnd& end);
  void find_chunks(const std::string& key_of_user);
  void start_capture();
  void enter_thread() noexcept;
  std::optional<SessionEnd> stopped();

  WorkerSessionDeps parts_;
  LinkMeter meter_;
  FrameSource source_;
  LinkOutbox outbox_;
  OutOfOrderReader out_of_order_reader_;
  OutputCapture capture_;
  HandleTable handles_;
  Quiescence quiescence_;
  PollingWatcher watcher_;
  WaiterPool waiters_;
  std::unique_ptr<ReplayState> state_;
  ClientFacts client_;

  CUcontext context_ = nullptr;
  bool primary_warm_ = false;
  bool resumable_ = false;
  bool heartbeats_ = false;
  bool client_comes_back_ = false;
  bool client_knows_heartbeats_ = false;
  unsigned client_lanes_ = 0;
  // The value of Welcome.chunks.
  uint8_t chunks_ = 0;
  // begin() sets it. A connection that requests a lane sooner may be refused.
  std::atomic<unsigned> lanes_{0};
  // The client's end, by the client's own description.
  transport::ConnectionEnd client_end_;
  const std::chrono::microseconds poll_time_;
  // The sequence of the last frame.
  uint64_t executed_ = 0;
  // Set when the first frame arrives; run() waits for it.
  std::chrono::steady_clock::time_point begun_{};
  // The executor's time of polling for completions.
  std::chrono::nanoseconds polled_{};
  // Waiters add their time of waiting for the device, and of work for the executor. Relaxed: the values are only
  // figures.
  std::atomic<int64_t> waited_elsewhere_ns_{0}, worked_elsewhere_ns_{0};

  // The first failure of a posted call that no reply has reported. A failing thread writes it, a replying thread takes
  // it; it publishes nothing else.
  std::atomic<int> deferred_{CUDA_SUCCESS};
  Mutex stop_mutex_;
  // The first reason counts.
  std::optional<SessionEnd> stop_ GUARDED_BY(stop_mutex_);
  // Used by poll_executor().
  uint64_t visits_seen_ = 0;
  // A hint for the out-of-order reader, which is woken after it was set.
  std::atomic<bool> hung_up_{false};
  // Set after stop_, and read before each frame. Relaxed, because the reason is read under the mutex.
  std::atomic<bool> stopping_{false};
};

}  // namespace gpuwire::server
