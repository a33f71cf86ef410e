// One session: the executor that takes a client's frames in order and replays them.
#pragma once

#include <cuda.h>

#include <array>
#include <atomic>
#include <chrono>
#include <cstdint>
#include <functional>
#include <memory>
#include <mutex>
#include <optional>
#include <string>

#include <tl/expected.hpp>

#include "protocol/transport/stream.hpp"
#include "server/replay/replay.hpp"
#include "server/replay/session/replay_state.hpp"
#include "server/ipc/end_cause.hpp"
#include "server/worker/connection/frame_source.hpp"
#include "server/worker/connection/link_outbox.hpp"
#include "server/worker/session/output_capture.hpp"
#include "server/worker/session/polling_watcher.hpp"
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
  uint32_t resume_grace_ms = 0;   // how long the session stays without a connection; 0: it ends with its connection
  uint32_t hang_up_grace_ms = 0;  // the same after a connection that was ended and not lost
  unsigned lanes_max = 0;         // further connections for bulk that the client may open; below 2: none
  // Decides, by the client's description of its own end, whether the connection may die without notice. Once, in a
  // session that outlives its connection, whose client knows heartbeats. Null: they are not wanted.
  std::function<bool(const transport::ConnectionEnd& client)> wants_heartbeats;
  // Called once, by begin(), right before Welcome leaves: from then on the client may lose its connection, and come
  // back over another one.
  std::function<void()> welcoming = {};
  // Makes the first device's primary context, which the process has ahead, the session's
  // (Replay::take_prewarmed_primary); false: there is none for it. Called once, by begin(): it may ask the broker,
  // whose answers reach the process only once its watchdog runs.
  std::function<bool()> claim_primary;
  HostMemory* host_memory = nullptr;  // the account of the session's memory on this machine; null: nobody counts
  unsigned cores = 1;                 // how many the process may run on
  SessionSettings settings;           // its tenant by authentication; if empty, the client's key identifies it
  // Called once, before the first call; the tenant may be empty: nobody. The error ends the session.
  std::function<tl::expected<void, std::string>(const std::string& tenant)> tenant_known;
  Management* management = nullptr;  // of a management session
  bool captures_output = true;       // the driver's lines on the process's standard output and error go to the client
  Gate* gate = nullptr;              // that stands before the driver's functions; null: none
  Profiler* profiler = nullptr;      // for a client that wants a profile; null: nothing can be timed
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

  // Shakes hands. Not empty: the reason why there is no session; the client has received it.
  std::optional<SessionEnd> begin();
  const ClientFacts& client() const { return client_; }
  // After begin(): the session outlives its connection.
  bool resumable() const { return resumable_; }
  // After begin(): both sides send heartbeats.
  bool heartbeats() const { return heartbeats_; }
  // How many lanes it may have; any thread.
  unsigned lanes() const { return lanes_.load(std::memory_order_relaxed); }
  // The client has closed its side of the connection: everything up to there is read now, even while the executor is
  // kept. Any thread.
  void connection_hung_up();
  // Looks whether the executor has been in one call since the last look, while bytes of the client's wait: then they
  // are read without it. One thread.
  void poll_executor();
  // It has another one. Any thread.
  void connection_attached() { hung_up_.store(false, std::memory_order_relaxed); }
  // Executes until the end of the session; if the server ends it, sends the client the reason. On the thread that
  // called begin().
  SessionEnd run();
  // Everything the session holds in the driver is given back. False: the device did not come to rest; only the
  // process's end frees it.
  bool release();

  // A line for the standard error of the client's program; a client that reads nothing misses it. Any thread, any time.
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
  // Each returns the end when there is one.
  std::optional<SessionEnd> read_hello();
  std::optional<SessionEnd> execute();
  std::optional<SessionEnd> execute_call();
  void dispatch(const ReplayEntry& entry, Call& call);
  const ReplayEntry* find_entry(uint32_t ordinal) const;
  OutOfOrderReader::Parts out_of_order_reader_parts();
  LinkOutbox::Hooks outbox_hooks();
  bool watch_instead(const DeviceWait& wait);
  void run_elsewhere(std::function<void()> work, std::atomic<int64_t>& spent_ns);
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
  std::mutex stop_mutex_;
  std::optional<SessionEnd> stop_;  // under stop_mutex_; the first one counts
  uint64_t visits_seen_ = 0;        // poll_executor()'s
  // A hint for the out-of-order reader, which is woken after it was set.
  std::atomic<bool> hung_up_{false};
  std::atomic<bool> stopping_{
      false};  // set after stop_, looked at before each frame; the reason is read under the mutex, so relaxed is enough
};

}  // namespace gpuwire::server
