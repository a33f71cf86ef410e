#include "test/simulation/world.hpp"

#include <algorithm>
#include <cstring>
#include <map>
#include <stdexcept>
#include <utility>

#include <fmt/format.h>

#include "protocol/link/heartbeat.hpp"
#include "protocol/resume/exchange.hpp"
#include "protocol/transport/simulated.hpp"
#include "schema/handshake.capnp.h"
#include "server/worker/connection/resumption.hpp"
#include "server/worker/session/reports.hpp"
#include "test/simulation/broker.hpp"
#include "test/simulation/network.hpp"

namespace gpuwire::simulation {

namespace {

using client::Reconnected;
using client::ReconnectFailure;

uint64_t mix(uint64_t number) {
  number = (number ^ (number >> 31)) * 0x9e3779b97f4a7c15;
  return number ^ (number >> 29);
}

// The windows are small, so that senders wait for room. The worker's ring is larger than its reserve for the
// out-of-order reader. Beside the largest piece that waits for room, a window has as much as the other side receives
// without an acknowledgement.
constexpr link::LinkLimits kWorkerLimits{.ring_bytes = 4u << 20, .bulk_bytes_max = 2u << 20};
constexpr link::LinkLimits kClientLimits{.ring_bytes = 4u << 20,
                                         .bulk_bytes_max = wire::kAcknowledgeBytes + kBulkBytesMax};

// Checks that an end never keeps more than its window.
void check_kept(const char* who, const link::Link::Kept& kept, const link::LinkLimits& limits, Verdict& verdict) {
  if (kept.ring_bytes > limits.ring_bytes || kept.bulk_bytes > limits.bulk_bytes_max)
    verdict.fail(fmt::format("the {} keeps {} bytes and {} of bulk, more than its window", who, kept.ring_bytes,
                             kept.bulk_bytes));
}

// The heartbeat interval of both sides in a scenario with swallowed connections. A side that is late by three of these
// loses a working connection, and gets another one.
constexpr std::chrono::milliseconds kPoll{1};

// The worker's side: a session over a fake driver, its executor, and the watchdog's heartbeat checks.
class Worker {
 public:
  Worker(std::unique_ptr<transport::Transport> transport, Network& network, bool heartbeats, Verdict& verdict)
      : network_(network),
        broker_([&verdict](std::string what) { verdict.fail(std::move(what)); }),
        reports_(broker_.workers_end()),
        link_(std::move(transport), kWorkerLimits),
        calls_(server_calls()),
        verdict_(verdict) {
    set_driver(&driver_);
    link_.observe([this](link::Link::State state) {
      notified_ = state;
      if (state == link::Link::State::attached) reports_.notify(server::ipc::Attached{});
      else reports_.notify(server::ipc::Detached{});
    });
    welcome_.initRoot<schema::Welcome>().initSessionId(16);
    resume::make_random(id_);
    resume::make_random(secret_);
    session_ = std::make_unique<server::Session>(server::WorkerSessionDeps{
        .link = &link_,
        .driver = &driver_.table,
        .calls = &calls_,
        .welcome = &welcome_,
        .id = id_,
        .resume_secret = secret_,
        .resume_grace_ms = 60'000,
        .wants_heartbeats = [heartbeats](const transport::ConnectionEnd&) { return heartbeats; },
        .welcoming = [this] { reports_.notify(server::ipc::Begun{}); },
        .cores = 2,
        .captures_output = false});
    resumption_ = std::make_unique<server::Resumption>(
        server::Resumption::Parts{.link = link_,
                                  .id = id_,
                                  .secret = secret_,
                                  .open = [this](server::OwnedDescriptor, std::string name) { return take(name); },
                                  .proved = [](const transport::Transport&, const resume::Request&) {},
                                  .refused =
                                      [this](const std::string& why) {
                                        if (why.ends_with("other attempts are under way")) too_many_ = true;
                                      },
                                  .fault =
                                      [this](std::string why) {
                                        if (!done_) verdict_.fail(why);
                                      }});
    thread_ = std::thread([this] { serve(); });
    if (heartbeats)
      watchdog_ = std::thread([this] {
        while (!done_) {
          if (begun_) heartbeat_.poll(link::Heartbeat::Clock::now());
          link_.wait(0, kPoll);
        }
      });
  }
  ~Worker() { join(); }
  // The client has closed the session, or tried to: a closing session gets no other connection for its last message.
  void client_left() {
    while (!done_ && link_.state() == link::Link::State::attached) link_.wait(0, std::chrono::milliseconds(1));
    link_.interrupt();
  }
  // Takes a connection of the client, like one from the broker. Any thread.
  void arrive(RawEnd connection) {
    std::lock_guard lock(arriving_mutex_);
    std::string name = std::to_string(++arrived_);
    {
      std::lock_guard waiting(waiting_mutex_);
      waiting_[name] = std::move(connection);
    }
    too_many_ = false;
    resumption_->arrive({}, name);
    if (!too_many_) return;
    std::lock_guard waiting(waiting_mutex_);
    waiting_.erase(name);  // like the close of its descriptor
  }
  void crash_broker() { broker_.crash(reports_); }
  void hear_broker() { broker_.receive(); }
  // Checks the final state. Precondition: the session has no further events.
  void check_end() {
    resumption_.reset();  // it may be about to report
    if (notified_ != link::Link::State::attached && link_.state() == link::Link::State::attached)
      verdict_.fail("the session is taken for detached, and is not");
    broker_.check_end();
  }
  const resume::SessionId& id() const { return id_; }
  const resume::Secret& secret() const { return secret_; }
  void join() {
    if (thread_.joinable()) thread_.join();
    if (watchdog_.joinable()) watchdog_.join();
  }
  link::Link& link() { return link_; }

 private:
  Network::Opened take(const std::string& name) {
    RawEnd end;
    {
      std::lock_guard lock(waiting_mutex_);
      end = std::move(waiting_.extract(name).mapped());
    }
    return network_.open_server(std::move(end));
  }
  void serve() {
    auto end = session_->begin();
    begun_ = !end;
    if (!end) end = session_->run();
    if (end->cause != server::EndCause::finished && end->cause != server::EndCause::cut)
      verdict_.fail("the worker's session ended: " + end->reason);
    done_ = true;
    reports_.notify(server::ipc::Ended{end->cause, end->reason});
    session_->release();
    end_scene();
  }

  Network& network_;
  Broker broker_;
  server::Reports reports_;
  test::FakeDriver driver_;
  std::atomic<link::Link::State> notified_{link::Link::State::attached};
  resume::SessionId id_{};
  resume::Secret secret_{};
  link::Link link_;
  link::Heartbeat heartbeat_{link_, link::GivingUp::closes, kPoll};
  server::CallTable calls_;
  capnp::MallocMessageBuilder welcome_;
  Verdict& verdict_;
  std::unique_ptr<server::Session> session_;
  std::atomic<bool> begun_{false};  // behind Welcome; before it nothing else may be sent
  std::atomic<bool> done_{false};   // a hint for waiters; the thread is joined before any other state is read
  std::mutex arriving_mutex_, waiting_mutex_;
  std::atomic<bool> too_many_{false};      // set by arrive()'s thread during the call
  unsigned arrived_ = 0;                   // under arriving_mutex_
  std::map<std::string, RawEnd> waiting_;  // under waiting_mutex_
  std::unique_ptr<server::Resumption> resumption_;
  std::thread thread_, watchdog_;
};

// Reconnects to the server, from the challenge on: the simulation has no login. Called by the client's receiving
// thread.
class SimulatedReconnector final : public client::Reconnector {
 public:
  SimulatedReconnector(const Scenario& scenario, Network& network, Worker& worker, Verdict& verdict)
      : scenario_(scenario),
        network_(network),
        worker_(worker),
        verdict_(verdict),
        random_(~scenario.seed),
        crashes_(scenario.broker_crashes) {}
  ~SimulatedReconnector() override { join(); }
  void join() {
    for (auto& thread : others_) thread.join();
    others_.clear();
  }

  tl::expected<Reconnected, ReconnectFailure> reconnect(uint64_t received) noexcept override {
    for (;;) {
      worker_.hear_broker();
      if (crashes_ != 0 && random_() % 2) {
        --crashes_;
        worker_.crash_broker();
        if (random_() % 8 == 0)
          return tl::unexpected<ReconnectFailure>({true, CUDA_ERROR_DEVICE_UNAVAILABLE, "the broker is being started"});
      }
      uint64_t attempt = ++attempts_;
      if (scenario_.doubles && random_() % 3 == 0 && others_.size() < kDoublesMax) {
        // A second connection for the same loss, as if given up or lost in transit while a newer one is made: with an
        // earlier attempt's number, or with the same.
        uint64_t other = attempt;
        if (random_() % 2) attempt = ++attempts_;
        others_.emplace_back([this, other, received] { ask(other, received); });
      }
      auto got = ask(attempt, received);
      if (got) return std::move(*got);
      if (got.error().refused && !scenario_.doubles) {
        verdict_.fail("the worker refuses its own client: " + got.error().cause);
        return tl::unexpected<ReconnectFailure>({false, CUDA_ERROR_DEVICE_UNAVAILABLE, got.error().cause});
      }
    }
  }

 private:
  static constexpr size_t kDoublesMax = 32;

  tl::expected<Reconnected, resume::Failure> ask(uint64_t attempt, uint64_t received) {
    RawEnd end;
    {
      std::lock_guard lock(mutex_);
      auto [ours, theirs] = network_.connect();
      end = std::move(ours);
      worker_.arrive(std::move(theirs));
    }
    auto near = network_.open_client(std::move(end));
    if (!near) return tl::unexpected<resume::Failure>({false, near.error()});
    auto server_received =
        resume::ask(**near, {worker_.id(), worker_.secret(), attempt, received}, std::chrono::minutes(1));
    if (!server_received) return tl::unexpected(server_received.error());
    return Reconnected{std::move(*near), *server_received};
  }

  const Scenario& scenario_;
  Network& network_;
  Worker& worker_;
  Verdict& verdict_;
  std::mt19937_64 random_;
  unsigned crashes_;
  uint64_t attempts_ = 0;
  std::mutex mutex_;  // guards the network
  std::vector<std::thread> others_;
};

// `answered`: the number of host functions that the program has run; their answers have numbers of one more thread.
void check_executed(Executed& executed, const Scenario& scenario, uint64_t answered, Verdict& verdict) {
  std::vector<uint64_t> next(scenario.threads + 1, 0);
  for (uint64_t number : executed.numbers) {
    size_t thread = number >> 32;
    if (thread >= next.size() || (number & 0xffffffff) != ++next[thread])
      return verdict.fail(fmt::format("call {:#x} was executed out of order, or twice", number));
  }
  if (next.back() != answered)
    return verdict.fail(fmt::format("{} answers were executed, {} were given", next.back(), answered));
  next.pop_back();
  for (uint64_t last : next)
    if (last != scenario.calls + 1)
      return verdict.fail(fmt::format("{} calls of a thread were executed, {} were made", last, scenario.calls + 1));
}

}  // namespace

size_t answer_bytes(uint64_t number) { return size_t(mix(number) % (mix(number + 1) % 61 == 0 ? 200'000 : 1500)); }

std::byte byte_of(uint64_t number, size_t offset) { return std::byte(mix(number + offset / 8) >> (offset % 8 * 8)); }

void fill(uint64_t number, std::span<std::byte> out) {
  for (size_t i = 0; i < out.size(); i += 8) {
    uint64_t word = mix(number + i / 8);
    std::memcpy(out.data() + i, &word, std::min<size_t>(8, out.size() - i));
  }
}

bool is_bulk_of(uint64_t number, std::span<const std::byte> bytes) {
  std::vector<std::byte> expected(bytes.size());
  fill(number, expected);
  return std::equal(bytes.begin(), bytes.end(), expected.begin());
}

void managed_work(uint64_t number, std::span<std::byte> memory) {
  for (size_t i = 0; i < memory.size(); ++i) memory[i] = std::byte(uint8_t(memory[i]) * 3 + uint8_t(number + i));
}

uint64_t captured_with(uint64_t digest, uint64_t number) { return mix(digest * 31 + number); }

void Verdict::fail(std::string what) {
  std::lock_guard lock(mutex_);
  if (text_.empty()) text_ = std::move(what);
  failed_.store(true, std::memory_order_relaxed);
}

std::string Verdict::text() const {
  std::lock_guard lock(mutex_);
  return text_;
}

Scenario scenario_of(uint64_t seed, Road road) {
  std::mt19937_64 random(seed);
  Scenario scenario{.seed = seed};
  scenario.road = road;
  scenario.threads = 1 + unsigned(random() % 3);
  scenario.calls = 10 + unsigned(random() % 40);
  scenario.bulk_bytes_max = random() % 16 ? 2048 : 100'000 + size_t(random() % (kBulkBytesMax - 100'000));
  scenario.cut_bytes_max = random() % 3 ? 20'000 : 600;
  scenario.cuts = unsigned(random() % 40);
  scenario.piece_bytes_max = random() % 2 ? 0 : 1 + size_t(random() % 5000);
  scenario.delay_polls_max = random() % 2 ? 0 : unsigned(random() % 4);
  scenario.swallows = random() % 32 == 0;
  // Some scenarios cut connections at consecutive bytes.
  scenario.sweeps = random() % 4 == 0;
  // Mostly within the first bytes, which include those at which the long run must have cut.
  scenario.sweep_from = random() % 4 ? random() % 3500 : random() % 20'000;
  scenario.doubles = random() % 4 == 0;
  scenario.broker_crashes = random() % 4 ? 0 : unsigned(random() % 6);
  scenario.callbacks = random() % 3 == 0;
  scenario.managed = random() % 3 == 0;
  scenario.captures = random() % 3 == 0;
  scenario.forks = random() % 16 == 0;
  scenario.fabric_breaks = road == Road::rdma && random() % 4 == 0 ? unsigned(random() % 4) : 0;
  return scenario;
}

std::string describe(const Scenario& s) {
  std::string text = fmt::format(
      "{} threads, {} calls each, bulk up to {} bytes, {} cuts {} bytes, pieces of {}, delays of {} looks, {} crashes "
      "of the broker",
      s.threads, s.calls, s.bulk_bytes_max, s.cuts,
      s.sweeps ? fmt::format("one after the other from {}", s.sweep_from) : fmt::format("within {}", s.cut_bytes_max),
      s.piece_bytes_max, s.delay_polls_max, s.broker_crashes);
  const std::pair<bool, const char*> with[] = {{s.swallows, "some swallow instead"},
                                               {s.doubles, "connections made twice"},
                                               {s.callbacks, "host functions"},
                                               {s.managed, "managed memory"},
                                               {s.captures, "captures"},
                                               {s.forks, "a fork"},
                                               {s.fabric_breaks != 0, "a fabric that breaks"}};
  for (auto [there, what] : with)
    if (there) text += fmt::format(", {}", what);
  return text;
}

Outcome run(const Scenario& scenario) {
  Verdict verdict;
  Executed executed;
  set_scene(&executed, &verdict);
  Network network(scenario);
  HostFunctions functions;
  Notices notices(verdict, functions);
  // The handshake uses a connection that does not break: a session that has not begun is not resumed.
  auto [near, far] = transport::simulated_pair({.seed = scenario.seed});
  Worker worker(std::move(far), network, scenario.swallows, verdict);
  Outcome outcome;
  {
    auto started = client::ConnectedSession::greet(std::move(near), "simulation", notices, nullptr, kClientLimits);
    if (!started) {
      worker.link().interrupt();
      return {started.error().cause};
    }
    client::ConnectedSession& session = **started;
    auto reconnector = std::make_unique<SimulatedReconnector>(scenario, network, worker, verdict);
    SimulatedReconnector& way = *reconnector;
    session.outlive_connections(std::move(reconnector), {std::chrono::minutes(1), std::chrono::minutes(1)},
                                scenario.swallows ? kPoll : std::chrono::milliseconds(0));
    functions.start(session, scenario.threads, verdict);
    if (scenario.cuts) worker.link().detach();
    run_program(session, scenario, verdict, [&] {
      check_kept("worker", worker.link().kept(), kWorkerLimits, verdict);
      check_kept("client", session.kept(), kClientLimits, verdict);
    });
    functions.stop();
    outcome.bytes_sent_again = worker.link().bytes_sent_again() + session.stats().bytes_sent_again;
    session.close();
    way.join();
    worker.client_left();
  }
  worker.join();
  if (!verdict.failed()) check_executed(executed, scenario, functions.answered(), verdict);
  if (!verdict.failed()) worker.check_end();
  outcome.failure = verdict.text();
  outcome.cuts = network.made();
  outcome.cut_at = network.cut_at();
  return outcome;
}

}  // namespace gpuwire::simulation
