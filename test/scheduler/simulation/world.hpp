// GPUs, workers and a GPU scheduler around one Policy, as discrete events from a seed.
#pragma once

#include <algorithm>
#include <functional>
#include <map>
#include <queue>
#include <string>
#include <vector>

#include "scheduler/policy.hpp"
#include "test/scheduler/scenario.hpp"
#include "test/scheduler/simulation/hardware.hpp"

namespace gpuwire::scheduler::test {

// What a session does: bursts of GPU work with rests between them, some of them in groups (a request that synchronizes
// on its way).
struct Workload {
  Duration kernel =
      std::chrono::microseconds(100);  // one submission: a kernel, or a graph; cut by the hardware, not by the gate
  Duration burst = HardwareDevice::kEndless;       // GPU time from one rest to the next; endless: never synchronizes
  Duration ahead = std::chrono::milliseconds(20);  // GPU time that its host queues where nothing bounds it
  Duration gap{};                                  // after a burst, within a request
  unsigned bursts_per_request = 1;
  Duration rest_min{}, rest_max{};  // after a request
  unsigned contexts = 1;
  unsigned bursts_seen = 1;                                // as how many its worker counts each burst
  Duration submission_gap = std::chrono::microseconds(4);  // between kernels when only one is in flight at a time
  // Its worker may not come when the gate is opened, for so long: the machine does not run it, or it is kept in a
  // driver call.
  double late_probability = 0;
  Duration late{};
  // Work that comes behind the closed gate, half the time that it has drained: pages that the host wants, answers to
  // host functions.
  Duration unasked{};
  // Not zero: the host launches so many kernels, one after the other, then waits for all of them and rests; `burst`,
  // `gap` and `contexts` say nothing. The queue runs empty wherever the GPU is faster than the host.
  unsigned launches = 0;
  Duration launch_every{};  // from one launch to the next while nothing holds them up
  // Of the launches of each iteration, so many at its end take so long instead: submissions unlike each other.
  unsigned others = 0;
  Duration other_kernel{};
  // The host is late with its next iteration by so much, now and then.
  double hiccup_probability = 0;
  Duration hiccup{};
  Duration copies{};  // before the launches, to and from the host: neither the gate nor the slices hold them up
};

struct SessionSpec {
  TenantId tenant{};
  std::vector<DeviceIndex> devices{0};
  Workload workload;
  Time arrives{};
  Time ends = Time::max();  // it dies, whatever it does
};

// Latencies between the processes of the server.
struct Latencies {
  Duration wake_min = std::chrono::microseconds(8), wake_max = std::chrono::microseconds(45);
  Duration spike = std::chrono::milliseconds(1);  // of a wake-up, now and then
  double spike_probability = 0;
  Duration notice_min = std::chrono::microseconds(5),
           notice_max = std::chrono::microseconds(20);  // of a drain by the worker
};

class World {
 public:
  World(uint64_t seed, size_t devices, Policy::Settings settings = {}, Latencies latencies = {});

  void tenant(TenantId tenant, const TenantPolicy& policy);
  SessionId add(const SessionSpec& spec);
  void jump_clock(Time at, Duration by);
  void run(Time until);  // stops at the first broken invariant
  void decide_now() { decide(); }
  void print_sessions() const;
  const std::string& wrong() const { return wrong_; }

  struct SessionState {
    SessionSpec spec;
    SessionId id{};
    std::vector<unsigned> first_context;  // on each of its devices
    bool alive = false, known = false;
    bool gate_open = false, passes = false;  // as decided; as the worker has seen it
    Gate gate;
    // Its worker does not count what it submits while nobody else is active, nor what of that is still in flight then.
    bool uncounted = false;
    double progress_uncounted = 0, progress_counted = 0;  // up to the last change of `uncounted`
    uint64_t gate_generation = 0, drain_generation = 0;
    Duration backlog{};  // of the burst, before the gate
    bool waiting = false, in_flight = false;
    unsigned contexts_busy = 0;
    std::vector<Duration> executed_at_burst;  // of each context of each of its devices, in this order
    unsigned bursts_left = 0;
    Time first_start{}, last_end{}, burst_begun{}, quiet_begun{}, request_begun{};
    bool begun = false;  // the burst's first work has begun
    Duration busy{}, quiet{};
    uint64_t bursts = 0, submissions = 0;
    Time waiting_since{}, closed_at{};
    Duration longest_wait{};  // at a closed gate
    uint64_t openings = 0;
    std::vector<double> request_seconds;
    std::vector<double> drain_seconds;  // from the gate's closing to the last work's end
    unsigned launches_left = 0;         // of this iteration
    bool syncs = false;                 // all are launched, and their end is awaited
    uint64_t iterations = 0;
    Duration busy_wall(Time now) const { return busy + (in_flight && begun ? now - burst_begun : Duration::zero()); }
  };

  double progress(SessionId session) const;    // seconds of work done on its first device
  Duration executed(SessionId session) const;  // GPU time that it had there
  Time now() const { return now_; }
  Policy& policy() { return policy_; }
  const std::vector<SessionState>& sessions() const { return sessions_; }
  std::vector<SessionState>& sessions() { return sessions_; }
  uint64_t decisions() const { return decisions_; }
  bool verbose = false;
  bool scheduling = true;  // or every gate open, as without a scheduler
  // What a worker says that does not tell the truth.
  std::function<void(SessionId, Observation&)> lies;
  // Runs after every decision; what it returns ends the run.
  std::function<std::string()> after_decision;

 private:
  enum class What : uint8_t {
    arrive,
    submit,
    launch,
    synced,
    gate_seen,
    drain_seen,
    die,
    death_seen,
    decide,
    device,
    jump
  };
  struct Event {
    Time at;
    uint64_t order;
    What what;
    uint32_t index;
    uint64_t generation;
    bool operator<(const Event& other) const { return at != other.at ? at > other.at : order > other.order; }
  };

  void post(Time at, What what, uint32_t index, uint64_t generation = 0);
  void handle(const Event& event);
  void advance_device(DeviceIndex device);
  void post_device(DeviceIndex device);
  void begin_burst(SessionState& session, bool new_request);
  void begin_iteration(SessionState& session);
  void launch(SessionState& session);
  void wait_at_gate(SessionState& session);
  void gave_work(SessionState& session);
  void synced(SessionState& session);
  void pass_unasked(SessionState& session);
  void submit(SessionState& session);
  void close(SessionState& session);
  void emptied(SessionState& session, Time at);
  void drain_seen(SessionState& session);
  void die(SessionState& session);
  void wake_scheduler();
  void decide();
  Observation page(const SessionState& session) const;
  Duration wake();
  Duration between(Duration low, Duration high) { return Duration(choices_.between(low.count(), high.count())); }
  int64_t depth(const SessionState& session) const;
  double progress_seen(const SessionState& session) const;
  double queued(const SessionState& session) const;
  Duration uncounted_left(const SessionState& session) const;
  void count_from_now(SessionState& session, bool counts);
  uint64_t completions(const SessionState& session) const;
  std::string check_opening(const SessionState& opened, const GateChange& change) const;
  // Caps and floors move a tenant to another class for a while: told apart, so that it is compared with nobody.
  int class_of(const SessionState& session) const {
    const ServiceClass of = classes_.at(session.spec.tenant);
    const bool floors = std::any_of(classes_.begin(), classes_.end(),
                                    [](const auto& entry) { return entry.second == ServiceClass::interactive; });
    const bool moves =
        of == ServiceClass::realtime || of == ServiceClass::scavenger || (of == ServiceClass::batch && floors);
    return moves ? -static_cast<int>(session.id) : static_cast<int>(of);
  }
  void print(const char* what, const SessionState& session) const;

  Choices choices_;
  Latencies latencies_;
  Policy::Settings settings_;
  Policy policy_;
  std::map<TenantId, ServiceClass> classes_;
  std::vector<HardwareDevice> hardware_;
  std::vector<Time> device_posted_;
  std::vector<std::vector<std::pair<uint32_t, unsigned>>>
      owner_;  // of each device's contexts: session, which of its devices
  std::vector<SessionState> sessions_;
  std::vector<HardwareEvent> happened_;
  std::priority_queue<Event> events_;
  uint64_t order_ = 0;
  Time now_ = std::chrono::seconds(1);
  Duration clock_offset_{};
  std::vector<Duration> jumps_;
  Time decide_at_ = Time::max();
  uint64_t decide_generation_ = 0;
  uint64_t decisions_ = 0;
  std::string wrong_;
};

}  // namespace gpuwire::scheduler::test
