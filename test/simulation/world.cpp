#include "test/simulation/world.hpp"

#include <algorithm>
#include <cstring>
#include <stdexcept>
#include <utility>

#include <fmt/format.h>

#include "protocol/link/heartbeat.hpp"
#include "protocol/transport/shared_memory.hpp"
#include "protocol/transport/simulated.hpp"
#include "schema/handshake.capnp.h"
#include "test/simulation/breaking.hpp"

namespace gpuwire::simulation {

namespace {

using client::Reconnected;
using client::ReconnectFailure;

uint64_t mix(uint64_t number) {
  number = (number ^ (number >> 31)) * 0x9e3779b97f4a7c15;
  return number ^ (number >> 29);
}

// Where connections of the scenario come from, and where they break.
class Network {
 public:
  Network(const Scenario& scenario) : scenario_(scenario), random_(scenario.seed) {}

  std::pair<std::unique_ptr<transport::Transport>, std::unique_ptr<transport::Transport>> connect() {
    uint64_t cut = made_ < scenario_.cuts ? random_() % (scenario_.cut_bytes_max + 1) : ~0ull;
    bool from_client = random_() % 2;
    bool swallows = scenario_.swallows && random_() % 4 == 0;
    uint64_t swallow = swallows ? std::exchange(cut, ~0ull) : ~0ull;
    ++made_;
    if (scenario_.shared_memory) return shared_pair(from_client ? ~0ull : cut, from_client ? cut : ~0ull);
    return transport::simulated_pair({.seed = random_(),
                                      .piece_bytes_max = scenario_.piece_bytes_max,
                                      .window_bytes = 1 + random_() % 100'000,
                                      .delay_looks_max = scenario_.delay_looks_max,
                                      .cut_first_to_second = from_client ? cut : ~0ull,
                                      .cut_second_to_first = from_client ? ~0ull : cut,
                                      .swallow_first_to_second = from_client ? swallow : ~0ull,
                                      .swallow_second_to_first = from_client ? ~0ull : swallow});
  }
  unsigned made() const { return made_; }

 private:
  static std::pair<std::unique_ptr<transport::Transport>, std::unique_ptr<transport::Transport>> shared_pair(
      uint64_t client_receives, uint64_t server_receives) {
    auto pair = transport::shared_memory_pair(transport::shared_memory::kRingBytesMin);
    if (!pair) throw std::runtime_error(pair.error());
    return {std::make_unique<BreakingTransport>(std::move(pair->first), client_receives),
            std::make_unique<BreakingTransport>(std::move(pair->second), server_receives)};
  }

  const Scenario& scenario_;
  std::mt19937_64 random_;
  unsigned made_ = 0;
};

// The way to the server again without a login: both links are told what the other has received. Called by the client's thread that receives.
class SimulatedReconnector final : public client::Reconnector {
 public:
  SimulatedReconnector(Network& network, link::Link& server) : network_(network), server_(server) {}
  ~SimulatedReconnector() override {
    if (pusher_.joinable()) pusher_.join();
  }

  tl::expected<Reconnected, ReconnectFailure> reconnect(uint64_t received) noexcept override {
    uint64_t server_received = server_.detach();
    if (pusher_.joinable()) pusher_.join();
    auto [near, far] = network_.connect();
    if (!server_.attach(std::move(far), received))
      return tl::unexpected<ReconnectFailure>({false, CUDA_ERROR_DEVICE_UNAVAILABLE, "the server's link refused the position"});
    // As the worker's thread that attaches does: what the connection does not take at once is sent as it does.
    pusher_ = std::thread([this] {
      server_.lock();
      uint64_t appended = server_.appended();
      server_.unlock();
      server_.push(appended, std::chrono::minutes(1));
    });
    return Reconnected{std::move(near), server_received};
  }

 private:
  Network& network_;
  link::Link& server_;
  std::thread pusher_;
};

// How often both sides look in a scenario that needs it. Who is late by three of these loses a connection that was well, and gets another.
constexpr std::chrono::milliseconds kLook{1};

// The worker's part: a session over a fake driver, its executor, and the watchdog's looks at the heartbeat.
class Worker {
 public:
  Worker(std::unique_ptr<transport::Transport> transport, bool heartbeats, Verdict& verdict)
      : link_(std::move(transport), {.bulk_bytes_max = 128u << 20}), calls_(server_calls()), verdict_(verdict) {
    link_.outlive_connections();
    welcome_.initRoot<schema::Welcome>().initSessionId(16);
    session_ = std::make_unique<server::Session>(server::SessionParts{.link = &link_,
                                                                      .driver = &driver_.table,
                                                                      .calls = &calls_,
                                                                      .welcome = &welcome_,
                                                                      .resume_grace_ms = 60'000,
                                                                      .wants_heartbeats = [heartbeats](const transport::ConnectionEnd&) { return heartbeats; },
                                                                      .cores = 2,
                                                                      .captures_output = false});
    thread_ = std::thread([this] { serve(); });
    if (heartbeats) watchdog_ = std::thread([this] {
      while (!done_) {
        if (begun_) heartbeat_.look(link::Heartbeat::Clock::now());
        link_.wait(0, kLook);
      }
    });
  }
  ~Worker() { join(); }
  // The client has taken its leave, or tried to: a session that closes does not get another connection for its goodbye.
  void client_left() {
    while (!done_ && link_.state() == link::Link::State::attached) link_.wait(0, std::chrono::milliseconds(1));
    link_.interrupt();
  }
  void join() {
    if (thread_.joinable()) thread_.join();
    if (watchdog_.joinable()) watchdog_.join();
  }
  link::Link& link() { return link_; }

 private:
  void serve() {
    auto end = session_->begin();
    begun_ = !end;
    if (!end) end = session_->run();
    if (end->cause != server::EndCause::finished && end->cause != server::EndCause::cut) verdict_.fail("the worker's session ended: " + end->reason);
    done_ = true;
    session_->release();
  }

  test::FakeDriver driver_;
  link::Link link_;
  link::Heartbeat heartbeat_{link_, link::GivingUp::closes, kLook};
  server::CallTable calls_;
  capnp::MallocMessageBuilder welcome_;
  Verdict& verdict_;
  std::unique_ptr<server::Session> session_;
  std::atomic<bool> begun_{false};  // behind Welcome; before it nothing else may be sent
  std::atomic<bool> done_{false};  // a hint for who waits; the thread is joined before anything else is looked at
  std::thread thread_, watchdog_;
};

void check_executed(Executed& executed, const Scenario& scenario, Verdict& verdict) {
  std::vector<uint64_t> next(scenario.threads, 0);
  for (uint64_t number : executed.numbers) {
    size_t thread = number >> 32;
    if (thread >= next.size() || (number & 0xffffffff) != ++next[thread]) return verdict.fail(fmt::format("call {:#x} was executed out of order, or twice", number));
  }
  for (uint64_t last : next)
    if (last != scenario.calls + 1) return verdict.fail(fmt::format("{} calls of a thread were executed, {} were made", last, scenario.calls + 1));
}

}  // namespace

size_t answer_bytes(uint64_t number) { return size_t(mix(number) % (mix(number + 1) % 7 == 0 ? 400'000 : 3000)); }

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

void Verdict::fail(std::string what) {
  std::lock_guard lock(mutex_);
  if (text_.empty()) text_ = std::move(what);
  failed_.store(true, std::memory_order_relaxed);
}

std::string Verdict::text() const {
  std::lock_guard lock(mutex_);
  return text_;
}

Scenario scenario_of(uint64_t seed) {
  std::mt19937_64 random(seed);
  Scenario scenario{.seed = seed};
  scenario.threads = 1 + unsigned(random() % 3);
  scenario.calls = 10 + unsigned(random() % 40);
  scenario.bulk_bytes_max = random() % 4 ? 4096 : 300'000 + size_t(random() % 400'000);
  // Some move through the first bytes one by one, so that every byte of handshake and first frames is cut.
  scenario.cut_bytes_max = random() % 3 ? 20'000 : 600;
  scenario.cuts = unsigned(random() % 40);
  scenario.piece_bytes_max = random() % 2 ? 0 : 1 + size_t(random() % 5000);
  scenario.delay_looks_max = random() % 2 ? 0 : unsigned(random() % 4);
  scenario.swallows = random() % 8 == 0;
  return scenario;
}

std::string describe(const Scenario& s) {
  return fmt::format("{} threads, {} calls each, bulk up to {} bytes, {} cuts within {} bytes, pieces of {}, delays of {} looks{}", s.threads, s.calls, s.bulk_bytes_max, s.cuts,
                     s.cut_bytes_max, s.piece_bytes_max, s.delay_looks_max, s.swallows ? ", some swallow instead" : "");
}

Outcome run(const Scenario& scenario) {
  Verdict verdict;
  Executed executed;
  set_scene(&executed, &verdict);
  Network network(scenario);
  Notices notices(verdict);
  // The handshake itself is over a connection that lasts: a session that has not begun is not resumed.
  auto [near, far] = transport::simulated_pair({.seed = scenario.seed});
  Worker worker(std::move(far), scenario.swallows, verdict);
  Outcome outcome;
  {
    auto started = client::ConnectedSession::greet(std::move(near), "simulation", notices);
    if (!started) {
      worker.link().interrupt();
      return {started.error().cause};
    }
    client::ConnectedSession& session = **started;
    session.outlive_connections(std::make_unique<SimulatedReconnector>(network, worker.link()), std::chrono::minutes(1),
                                scenario.swallows ? kLook : std::chrono::milliseconds(0));
    if (scenario.cuts) worker.link().detach();
    run_program(session, scenario, verdict);
    outcome.bytes_sent_again = worker.link().bytes_sent_again() + session.stats().bytes_sent_again;
    session.close();
    worker.client_left();
  }
  worker.join();
  if (!verdict.failed()) check_executed(executed, scenario, verdict);
  outcome.failure = verdict.text();
  outcome.cuts = network.made();
  return outcome;
}

}  // namespace gpuwire::simulation
