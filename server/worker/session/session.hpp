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
#include "server/worker/connection/frame_source.hpp"
#include "server/worker/connection/link_outbox.hpp"
#include "server/worker/session/output_capture.hpp"
#include "server/worker/session/polling_watcher.hpp"
#include "server/worker/session/quiescence.hpp"
#include "server/worker/connection/out_of_order_reader.hpp"
#include "server/worker/session/waiter_pool.hpp"

namespace gpuwire::server {

class Gate;  // server/gate/gate.hpp

// By ordinal; null: unknown.
using CallTable = std::array<const ReplayEntry*, wire::kOrdinalMax>;
CallTable make_call_table(std::span<const ReplayEntry> session_calls, std::span<const ReplayEntry> driver_calls);

struct SessionEnd {
  EndCause cause = EndCause::finished;
  std::string reason;               // one line
  StopKind stop = StopKind::ended;  // with EndCause::stopped
};

// The dependencies of a session; all of them outlive the session.
struct WorkerSessionDeps {
  link::Link* link = nullptr;        // attached
  LinkCounters* counters = nullptr;  // null: nothing is counted
  const DriverTable* driver = nullptr;
  const CallTable* calls = nullptr;
  capnp::MallocMessageBuilder* welcome = nullptr;  // build_welcome()'s; the session fills in its id
  std::array<uint8_t, 16> id{};
  std::array<uint8_t, wire::kResumeSecretBytes> resume_secret{};
  // the time for which the session stays without a connection; 0: it ends with its connection
  uint32_t resume_grace_ms = 0;
  uint32_t hang_up_grace_ms = 0;  // the same after a connection that was closed and not lost
  unsigned lanes_max = 0;         // further connections for bulk that the client may open; below 2: none
  // Decides, by the client's description of its end, whether the connection may fail unnoticed and thus needs
  // heartbeats. Called once, if the session outlives its connection and the client supports heartbeats. Null: no
  // heartbeats.
  std::function<bool(const transport::ConnectionEnd& client)> wants_heartbeats;
  // Called once, by begin(), directly before Welcome is sent: from then on the client may lose its connection and
  // reconnect.
  std::function<void()> welcoming = {};
  // Gives the prewarmed primary context of the first device to the session (Replay::take_prewarmed_primary); false:
  // there is none for it. Called once, by begin(): it may send a request to the broker, whose answer arrives only once
  // the watchdog runs.
  std::function<bool()> claim_primary;
  HostMemory* host_memory = nullptr;  // the account of the session's host memory; null: nothing is charged
  unsigned cores = 1;                 // the number of cores that the process may use
  SessionSettings settings;           // its tenant by authentication; if empty, the client's key identifies it
  // Called once, before the first call; `tenant` is empty if it is unknown. An error ends the session.
  std::function<tl::expected<void, std::string>(const std::string& tenant)> tenant_known;
  Management* management = nullptr;  // of a management session
  bool captures_output = true;       // the driver's lines on the process's standard output and error go to the client
  Gate* gate = nullptr;              // the gate before the driver's functions; may be null
  // Tell the broker: the answer to its request to rest, and that a resting session's client needs the driver.
  std::function<void(const std::string& why_not)> quiet = [](const std::string&) {};
  std::function<void()> return_wanted = [] {};
  Profiler* profiler = nullptr;  // for a client that requests a profile; null: work cannot be timed
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
  // After begin(): the session outlives its connection.
  bool resumable() const { return resumable_; }
  // After begin(): both sides send heartbeats.
  bool heartbeats() const { return heartbeats_; }
  // The number of lanes that the session may have; any thread.
  unsigned lanes() const { return lanes_.load(std::memory_order_relaxed); }
  // Has all bytes up to the connection's end read, even while the executor is blocked. Called when the client has
  // closed its side. Any thread.
  void connection_hung_up();
  // Checks whether the executor has been in one call since the last check while bytes of the client are unread: then
  // the out-of-order reader reads them. One thread.
  void poll_executor();
  // Called when the session has a new connection. Any thread.
  void connection_attached() { hung_up_.store(false, std::memory_order_relaxed); }
  // The broker's orders about the session's rest. Any thread.
  Quiescence& quiescence() { return quiescence_; }
  // Executes until the end of the session; if the server ends it, sends the client the reason. On the thread that
  // called begin().
  SessionEnd run();
  // Releases all objects of the session in the driver. False: the device still has work, or the session is suspended;
  // then only the process's end frees them, and no thread may call the driver or wait for one that does.
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
  uint8_t chunks_ = 0;                   // Welcome.chunks
  std::atomic<unsigned> lanes_{0};       // set by begin(); a connection that asks for one sooner may be refused
  transport::ConnectionEnd client_end_;  // as the client says
  const std::chrono::microseconds poll_time_;
  uint64_t executed_ = 0;                          // sequence of the last frame
  std::chrono::steady_clock::time_point begun_{};  // run() waits for the first frame
  std::chrono::nanoseconds polled_{};              // executor: looked whether the device was done
  // Waiters add their time of waiting for the device, and of work for the executor; relaxed: figures.
  std::atomic<int64_t> waited_elsewhere_ns_{0}, worked_elsewhere_ns_{0};

  // The first failure of a posted call that no reply has reported. Written by the failing thread, taken by a replying
  // one; it publishes nothing else.
  std::atomic<int> deferred_{CUDA_SUCCESS};
  Mutex stop_mutex_;
  std::optional<SessionEnd> stop_ GUARDED_BY(stop_mutex_);  // the first one counts
  uint64_t visits_seen_ = 0;                                // poll_executor()'s
  // A hint for the out-of-order reader, which is woken after it was set.
  std::atomic<bool> hung_up_{false};
  std::atomic<bool> stopping_{
      false};  // set after stop_, looked at before each frame; the reason is read under the mutex, so relaxed is enough
};

}  // namespace gpuwire::server
