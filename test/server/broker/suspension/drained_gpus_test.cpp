// Tests which sessions DrainedGpus suspends and holds, with a ledger, a clock, a suspender and workers of the test's
// own.
#include "server/broker/suspension/drained_gpus.hpp"

#include <filesystem>
#include <fstream>
#include <map>
#include <string>
#include <vector>

#include <doctest/doctest.h>
#include <unistd.h>

#include "server/broker/limits.hpp"
#include "test/server/broker/suspension/suspension_parts.hpp"

using namespace gpuwire;
using namespace gpuwire::server;
using namespace std::chrono_literals;
using scheduler::DeviceIndex;
using scheduler::Duration;
using scheduler::SessionId;

namespace {

struct FixedMemory final : SuspensionMemory {
  std::string why_not_released(const SessionRecord&) const override { return why; }
  uint64_t releasable_bytes(const SessionRecord&) const override { return 5u << 20; }
  uint64_t releasable_bytes(const SessionRecord&, DeviceIndex) const override { return 5u << 20; }
  uint64_t away_bytes(const SessionRecord&, DeviceIndex) const override { return 5u << 20; }
  uint64_t held_bytes(scheduler::TenantId, DeviceIndex) const override { return 5u << 20; }
  MemoryShortage shortage(const SessionRecord&, DeviceIndex, uint64_t) const override { return {}; }
  uint64_t release_memory(const SessionRecord&) override { return 5u << 20; }
  void offer_memory() override {}
  bool take_memory(const SessionRecord&) override { return true; }
  std::string why;
};

// The folder of one test.
struct Folder {
  Folder() {
    char name[] = "/tmp/gpuwire-drain-XXXXXX";
    path = ::mkdtemp(name);
  }
  ~Folder() { std::filesystem::remove_all(path); }
  std::filesystem::path path;
};

struct DrainFixture {
  boost::asio::io_context io;
  SessionRegistry registry;
  FixedMemory memory;
  test::TestMover mover;
  test::TestControl control;
  scheduler::Time now = 24h;
  std::map<SessionId, std::optional<Duration>> idle;
  int changes = 0;
  Suspensions suspensions{{.io = io,
                           .registry = registry,
                           .control = control,
                           .memory = memory,
                           .mover = mover,
                           .host_available = [] { return uint64_t(0); },
                           .now = [this] { return now; }}};
  SuspenderProcess::Events suspender = suspensions.mover_events();
  DrainedGpus drains;

  explicit DrainFixture(const std::filesystem::path& file = {}, std::vector<ServerDevice> devices = two())
      : drains({.io = io,
                .registry = registry,
                .suspensions = suspensions,
                .idle = [this](SessionId session) { return idle[session]; },
                .changed = [this] { ++changes; },
                .file = file,
                .now = [this] { return now; }}) {
    drains.devices_known(devices);
  }
  static std::vector<ServerDevice> two() { return {{.index = 0, .uuid = "GPU-a"}, {.index = 1, .uuid = "GPU-b"}}; }

  SessionId begin(std::vector<DeviceIndex> devices = {0}) {
    SessionRecord record;
    record.tenant = "anna";
    record.devices = std::move(devices);
    record.worker_pid = 4711;
    const SessionId number = registry.add(record).number;
    registry.begun(number, "");
    idle[number] = 1h;
    return number;
  }
  void answer(SessionId session, const std::string& why_not = {}) {
    std::erase(control.quiesced, session);
    ipc::Message quiet = ipc::Quiet{why_not};
    CHECK(suspensions.on_message(*registry.find(session), quiet));
  }
  void moved() { suspender.moved({mover.orders.back().order, ipc::MoveResult::done, {}}); }
  // Runs timers until the condition holds.
  template <class Condition>
  void await(Condition&& holds) {
    while (!holds()) {
      io.restart();
      io.run_one();
    }
  }
  std::string states(DeviceIndex gpu) {
    std::string text;
    const auto drain = drains.drain_of(gpu);
    REQUIRE(drain);
    for (const DrainedGpus::Session& one : drain->sessions) text += (one.away ? "away: " : "stays: ") + one.text + "; ";
    return text;
  }
  using Asked = std::vector<SessionId>;
};

}  // namespace

TEST_CASE("a drained GPU's idle sessions are suspended at once, and one that works as soon as it is idle") {
  DrainFixture f;
  const SessionId idle = f.begin(), busy = f.begin({0, 1}), elsewhere = f.begin({1});
  f.idle[busy].reset();
  const auto drain = f.drains.drain(0);
  REQUIRE(drain);
  CHECK(drain->drained);
  CHECK(drain->changed);
  CHECK(f.changes == 1);
  CHECK(f.drains.is_drained(0));
  CHECK_FALSE(f.drains.is_drained(1));
  CHECK(f.control.quiesced == DrainFixture::Asked{idle});
  CHECK(f.states(0) == "stays: it is being suspended; stays: its program works; ");
  f.answer(idle);
  f.moved();
  CHECK(f.states(0) == "away: suspended, 5 MiB; stays: its program works; ");
  CHECK(f.drains.has_memory_of_sessions(0));
  f.idle[busy] = 0s;
  f.await([&] { return !f.control.quiesced.empty(); });
  CHECK(f.control.quiesced == DrainFixture::Asked{busy});
  f.answer(busy);
  f.moved();
  CHECK_FALSE(f.drains.has_memory_of_sessions(0));
  CHECK(f.registry.find(elsewhere)->suspension == SuspensionState::none);
  CHECK_FALSE(f.drains.drain(0)->changed);
  CHECK(f.changes == 1);
}

TEST_CASE("a session that could not be suspended is asked again after a while, and its reason is told") {
  DrainFixture f;
  const SessionId session = f.begin();
  REQUIRE(f.drains.drain(0));
  f.answer(session, "its program made calls a moment ago");
  CHECK(f.states(0) == "stays: its program made calls a moment ago; ");
  f.now += std::chrono::milliseconds(2 * kDrainRetryMs);
  f.await([&] { return !f.control.quiesced.empty(); });
  f.answer(session);
  f.moved();
  CHECK(f.states(0) == "away: suspended, 5 MiB; ");
}

TEST_CASE("a session of a drained GPU returns with its next call once the GPU is undrained") {
  DrainFixture f;
  const SessionId session = f.begin();
  REQUIRE(f.drains.drain(0));
  f.answer(session);
  f.moved();
  ipc::Message wanted = ipc::ReturnWanted{};
  CHECK(f.suspensions.on_message(*f.registry.find(session), wanted));
  CHECK(f.mover.orders.size() == 1);
  CHECK(f.drains.why_held(*f.registry.find(session)) == "GPU 0 is drained");
  const auto undrained = f.drains.undrain(0);
  REQUIRE(undrained);
  CHECK(undrained->changed);
  CHECK_FALSE(undrained->drained);
  CHECK(f.changes == 2);
  f.await([&] { return f.mover.orders.size() == 2; });
  f.moved();
  CHECK(f.registry.find(session)->suspension == SuspensionState::none);
  CHECK_FALSE(f.drains.undrain(0)->changed);
}

TEST_CASE("a GPU that the server does not have cannot be drained") {
  DrainFixture f;
  CHECK(f.drains.drain(2).error() == "there is no GPU 2");
  CHECK(f.drains.undrain(2).error() == "there is no GPU 2");
  CHECK(f.drains.drain_of(7).error() == "there is no GPU 7");
  CHECK(f.changes == 0);
}

TEST_CASE("drained GPUs are known to the next server by their UUIDs, whatever their numbers are then") {
  Folder folder;
  const auto file = folder.path / "state" / "drained";
  {
    DrainFixture f(file);
    REQUIRE(f.drains.drain(1));
  }
  {
    DrainFixture f(file, {{.index = 0, .uuid = "GPU-b"}, {.index = 1, .uuid = "GPU-c"}});
    CHECK(f.drains.is_drained(0));
    CHECK_FALSE(f.drains.is_drained(1));
    const SessionId session = f.begin();  // of an earlier server
    f.await([&] { return !f.control.quiesced.empty(); });
    CHECK(f.control.quiesced == DrainFixture::Asked{session});
  }
  {
    DrainFixture f(file, {{.index = 0, .uuid = "GPU-c"}});  // without the card, which stays drained
    CHECK_FALSE(f.drains.is_drained(0));
    REQUIRE(f.drains.drain(0));
    REQUIRE(f.drains.undrain(0));
  }
  {
    DrainFixture f(file);
    CHECK(f.drains.is_drained(1));
    REQUIRE(f.drains.undrain(1));
    CHECK_FALSE(std::filesystem::exists(file));
  }
  CHECK_FALSE(DrainFixture(file).drains.is_drained(1));
}

TEST_CASE("a file that is no list of drained GPUs is refused") {
  Folder folder;
  const auto file = folder.path / "drained";
  CHECK(read_drain_file(file)->empty());
  std::ofstream(file) << "something else\n";
  CHECK(read_drain_file(file).error() == file.string() + ": is no list of drained GPUs");
  DrainFixture f(file);
  CHECK_FALSE(f.drains.is_drained(0));
  REQUIRE(f.drains.drain(0));  // replaces it
  CHECK(*read_drain_file(file) == std::set<std::string>{"GPU-a"});
}
