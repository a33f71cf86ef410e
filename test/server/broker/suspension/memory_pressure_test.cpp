// Tests which sessions MemoryPressure suspends for which askers, with a ledger, a clock, a suspender and workers of the
// test's own.
#include "server/broker/suspension/memory_pressure.hpp"

#include <algorithm>
#include <map>
#include <set>
#include <string>
#include <vector>

#include <doctest/doctest.h>

#include "server/broker/limits.hpp"
#include "test/server/broker/suspension/suspension_parts.hpp"

using namespace gpuwire;
using namespace gpuwire::server;
using namespace std::chrono_literals;
using scheduler::DeviceIndex;
using scheduler::Duration;
using scheduler::MemoryWait;
using scheduler::SessionId;
using scheduler::Suspend;
using scheduler::TenantId;

namespace {

constexpr uint64_t kMiB = 1u << 20;

// Cards of 100 MiB, and tenants with limits.
struct CardMemory final : SuspensionMemory {
  struct Has {
    TenantId tenant{};
    std::vector<DeviceIndex> devices;
    uint64_t bytes = 0;  // of each device
    bool away = false;
  };
  uint64_t used(DeviceIndex device) const {
    uint64_t bytes = 0;
    for (const auto& [number, one] : sessions)
      if (!one.away && std::ranges::find(one.devices, device) != one.devices.end()) bytes += one.bytes;
    return bytes;
  }
  uint64_t bytes_on(const SessionRecord& session, DeviceIndex device) const {
    const auto found = sessions.find(session.number);
    const bool there =
        found != sessions.end() && std::ranges::find(found->second.devices, device) != found->second.devices.end();
    return there ? found->second.bytes : 0;
  }

  std::string why_not_released(const SessionRecord&) const override { return {}; }
  uint64_t releasable_bytes(const SessionRecord& session) const override {
    uint64_t bytes = 0;
    for (DeviceIndex device : session.devices) bytes += bytes_on(session, device);
    return bytes;
  }
  uint64_t releasable_bytes(const SessionRecord& session, DeviceIndex device) const override {
    return bytes_on(session, device);
  }
  uint64_t away_bytes(const SessionRecord& session, DeviceIndex device) const override {
    return sessions.at(session.number).away ? bytes_on(session, device) : 0;
  }
  uint64_t held_bytes(TenantId tenant, DeviceIndex device) const override {
    uint64_t bytes = 0;
    for (const auto& [number, one] : sessions)
      if (one.tenant == tenant && !one.away && std::ranges::find(one.devices, device) != one.devices.end())
        bytes += one.bytes;
    return bytes;
  }
  MemoryShortage shortage(const SessionRecord& session, DeviceIndex device, uint64_t bytes) const override {
    if (const auto limit = limits.find(session.tenant_id); limit != limits.end()) {
      const uint64_t room = limit->second - std::min(limit->second, held_bytes(session.tenant_id, device));
      if (bytes > room) return {MemoryShortage::Of::tenant, bytes - room};
    }
    return {MemoryShortage::Of::device, scheduler::difference(bytes, 100 * kMiB - used(device))};
  }
  uint64_t release_memory(const SessionRecord& session) override {
    sessions.at(session.number).away = true;
    return releasable_bytes(session);
  }
  void offer_memory() override {
    if (offered) offered();
  }
  bool take_memory(const SessionRecord& session) override {
    Has& has = sessions.at(session.number);
    for (DeviceIndex device : has.devices)
      if (used(device) + has.bytes > 100 * kMiB) return false;
    has.away = false;
    return true;
  }

  std::map<SessionId, Has> sessions;
  std::map<TenantId, uint64_t> limits;
  std::function<void()> offered;
};

TenantConfiguration tenant_of(const char* name, Suspend when = Suspend::pressure) {
  TenantConfiguration tenant{.name = name};
  tenant.suspend = when;
  return tenant;
}

struct PressureFixture {
  boost::asio::io_context io;
  SessionRegistry registry;
  TenantDirectory tenants;
  CardMemory memory;
  test::TestMover mover;
  test::TestControl control;
  scheduler::Time now = 24h;
  uint64_t available = 0;
  std::map<SessionId, std::optional<Duration>> idle;
  std::vector<MemoryWait> queue;
  unsigned queue_changes = 0;
  Suspensions suspensions{
      {.io = io,
       .registry = registry,
       .control = control,
       .memory = memory,
       .mover = mover,
       .host_available = [this] { return available; },
       .tenant_memory_max = [this](TenantId tenant) { return tenants.find(tenant)->settings.suspend_memory_bytes; },
       .now = [this] { return now; }}};
  SuspenderProcess::Events suspender = suspensions.mover_events();
  MemoryPressure pressure{{.io = io,
                           .registry = registry,
                           .tenants = tenants,
                           .suspensions = suspensions,
                           .memory = memory,
                           .idle = [this](SessionId session) { return idle[session]; },
                           .queue = [this] { return queue; },
                           .queue_changed = [this] { ++queue_changes; },
                           .now = [this] { return now; }}};

  explicit PressureFixture(std::vector<TenantConfiguration> of = {tenant_of("anna"), tenant_of("ben"),
                                                                  tenant_of("carl")})
      : tenants(std::move(of)) {}

  // A session that has idled for an hour.
  SessionId begin(const char* tenant, uint64_t mib, std::vector<DeviceIndex> devices = {0}) {
    SessionRecord record;
    record.tenant = tenant;
    record.tenant_id = tenants.find(tenant)->id;
    record.service_class = tenants.find(tenant)->settings.service_class;
    record.devices = devices;
    record.worker_pid = 4711;
    const SessionId number = registry.add(record).number;
    registry.begun(number, "");
    memory.sessions[number] = {record.tenant_id, devices, mib * kMiB};
    idle[number] = 1h;
    return number;
  }
  // A program that waits for memory in the queue, and begins with it.
  SessionId wait(const char* tenant, uint64_t mib, std::vector<DeviceIndex> devices = {0}, unsigned gpus = 1) {
    SessionRecord record;
    record.tenant = tenant;
    record.tenant_id = tenants.find(tenant)->id;
    record.service_class = tenants.find(tenant)->settings.service_class;
    const SessionId number = registry.add(record).number;
    queue.push_back({.session = number, .gpus = gpus, .memory_bytes = mib * kMiB, .devices = devices});
    memory.offered = [this] {
      std::erase_if(queue, [this](const MemoryWait& one) {
        if (memory.shortage(*registry.find(one.session), one.devices[0], one.memory_bytes).bytes != 0) return false;
        memory.sessions[one.session] = {registry.find(one.session)->tenant_id, {one.devices[0]}, one.memory_bytes};
        return true;
      });
    };
    return number;
  }
  // Its program makes a call.
  void call(SessionId session) {
    idle[session].reset();
    ipc::Message wanted = ipc::ReturnWanted{};
    CHECK(suspensions.on_message(*registry.find(session), wanted));
  }
  void answer(SessionId session, const std::string& why_not = {}) {
    std::erase(control.quiesced, session);
    ipc::Message quiet = ipc::Quiet{why_not};
    CHECK(suspensions.on_message(*registry.find(session), quiet));
  }
  void poll() {
    pressure.poll();
    handle_posted();
  }
  void handle_posted() {
    io.restart();
    io.poll();
  }
  // All workers rest, and all moves are done.
  void settle() {
    while (!control.quiesced.empty()) answer(control.quiesced.front());
    while (moved_ < mover.orders.size()) {
      const uint64_t order = mover.orders[moved_++].order;
      suspender.moved({order, ipc::MoveResult::done, {}});
    }
    handle_posted();
  }
  bool is_away(SessionId session) const { return registry.find(session)->suspension == SuspensionState::suspended; }
  using Asked = std::vector<SessionId>;

 private:
  size_t moved_ = 0;
};

}  // namespace

TEST_CASE("a program in the queue gets the memory of one idle session, and no second one is suspended for it") {
  PressureFixture f;
  const SessionId small = f.begin("anna", 30), large = f.begin("ben", 60);
  f.wait("carl", 50);
  f.poll();
  f.poll();
  CHECK(f.queue_changes == 1);
  CHECK(f.control.quiesced == PressureFixture::Asked{large});
  f.settle();
  CHECK(f.queue.empty());
  CHECK(f.is_away(large));
  f.poll();
  CHECK(f.control.quiesced.empty());
  CHECK_FALSE(f.is_away(small));
}

TEST_CASE("a program that fits, or that no suspension helps, suspends nobody") {
  PressureFixture f;
  const SessionId idle = f.begin("anna", 30), busy = f.begin("ben", 60);
  f.idle[busy].reset();
  f.wait("carl", 10);
  f.wait("carl", 50);
  f.poll();
  CHECK(f.control.quiesced.empty());
  f.idle[busy] = 1h;
  f.poll();
  CHECK_FALSE(f.control.quiesced.empty());
  CHECK_FALSE(f.is_away(idle));
}

TEST_CASE("a session that returns gets the memory of an idle one before the queue does") {
  PressureFixture f;
  const SessionId first = f.begin("anna", 60);
  f.suspensions.suspend(first, [](const auto&) {});
  f.settle();
  const SessionId second = f.begin("ben", 60);
  f.wait("carl", 60);
  f.call(first);
  CHECK(f.registry.find(first)->suspension == SuspensionState::resuming);
  f.handle_posted();
  CHECK(f.control.quiesced == PressureFixture::Asked{second});
  f.settle();
  CHECK(f.registry.find(first)->suspension == SuspensionState::none);
  CHECK(f.is_away(second));
  CHECK(f.queue.size() == 1);
}

TEST_CASE("a session that came back keeps the GPU for ten times what its return cost") {
  PressureFixture f;
  const SessionId first = f.begin("anna", 60);
  f.suspensions.suspend(first, [](const auto&) {});
  f.settle();
  f.call(first);
  f.now += 3s;
  f.settle();
  REQUIRE(f.registry.find(first)->suspension == SuspensionState::none);
  f.idle[first] = 1h;
  const SessionId other = f.begin("carl", 0);
  f.wait("ben", 60);
  f.now += 30s - 1ns;
  f.poll();
  CHECK(f.pressure.relieve(other, 0, 60 * kMiB) == SuspensionRelief::coming);  // an allocation waits for it
  CHECK(f.control.quiesced.empty());
  f.now += 1ns;
  f.poll();
  CHECK(f.control.quiesced == PressureFixture::Asked{first});
}

TEST_CASE("sessions of a higher class, of tenants that do not permit it, and within a guarantee stay") {
  TenantConfiguration anna = tenant_of("anna"), ben = tenant_of("ben", Suspend::never), dora = tenant_of("dora");
  anna.service_class = scheduler::ServiceClass::interactive;
  dora.memory.guaranteed_bytes = 30 * kMiB;
  PressureFixture f({anna, ben, tenant_of("carl"), dora});
  f.begin("anna", 30), f.begin("ben", 30), f.begin("dora", 20);
  f.wait("carl", 30);
  f.poll();
  CHECK(f.control.quiesced.empty());
  // Beyond its guarantee dora gives 10 MiB, which is not enough.
  f.begin("dora", 20);
  f.poll();
  CHECK(f.control.quiesced.empty());
  f.queue.clear();
  f.wait("carl", 10);
  f.poll();
  REQUIRE(f.control.quiesced.size() == 1);
  CHECK(f.registry.find(f.control.quiesced.front())->tenant == "dora");
}

TEST_CASE("where a tenant's limit is in the way, only the tenant's own sessions help") {
  PressureFixture f;
  f.memory.limits[f.tenants.find("anna")->id] = 60 * kMiB;
  f.begin("ben", 30);
  f.wait("anna", 50);
  const SessionId own = f.begin("anna", 20);
  f.poll();
  CHECK(f.control.quiesced == PressureFixture::Asked{own});
}

TEST_CASE("the sessions of a tenant that wants it are suspended when they have been idle for long enough") {
  PressureFixture f({tenant_of("anna", Suspend::idle), tenant_of("ben")});
  const SessionId first = f.begin("anna", 10), second = f.begin("anna", 10), other = f.begin("ben", 10);
  f.idle[first] = 10min - 1ns;
  f.idle[second] = 10min;
  f.poll();
  CHECK(f.control.quiesced == PressureFixture::Asked{second});
  f.settle();
  CHECK(f.is_away(second));
  CHECK_FALSE(f.is_away(other));
  f.suspensions.set_memory_max(15 * kMiB);
  f.idle[first] = 10min;
  f.poll();
  CHECK(f.control.quiesced.empty());
}

TEST_CASE("a tenant whose suspended sessions have all of its suspend_memory has no victim") {
  TenantConfiguration anna = tenant_of("anna", Suspend::idle);
  anna.suspend_memory_bytes = 40 * kMiB;
  PressureFixture f({anna, tenant_of("ben"), tenant_of("carl")});
  const SessionId first = f.begin("anna", 30);
  f.suspensions.suspend(first, [](const auto&) {});
  f.settle();
  REQUIRE(f.is_away(first));
  const SessionId second = f.begin("anna", 60), other = f.begin("ben", 30);
  f.poll();
  CHECK(f.control.quiesced.empty());  // its idle time is no reason, either
  f.wait("carl", 20);
  f.poll();
  CHECK(f.control.quiesced == PressureFixture::Asked{other});
  f.settle();
  CHECK(f.queue.empty());
  CHECK_FALSE(f.is_away(second));
}

TEST_CASE("the memory of a drained GPU is freed for no session that returns") {
  PressureFixture f;
  const SessionId first = f.begin("anna", 60);
  f.suspensions.suspend(first, [](const auto&) {});
  f.settle();
  f.begin("ben", 60);
  f.suspensions.set_why_held([](const SessionRecord&) { return std::string("GPU 0 is drained"); });
  f.call(first);
  f.poll();
  CHECK(f.control.quiesced.empty());
}

TEST_CASE("an allocation waits while an idle session is suspended for it, and fails where none helps") {
  PressureFixture f;
  const SessionId asker = f.begin("anna", 30), victim = f.begin("ben", 60);
  f.idle[asker].reset();
  CHECK(f.pressure.relieve(asker, 0, 71 * kMiB) == SuspensionRelief::none);
  CHECK(f.pressure.relieve(asker, 0, 70 * kMiB) == SuspensionRelief::coming);
  CHECK(f.pressure.relieve(asker, 0, 70 * kMiB) == SuspensionRelief::coming);
  CHECK(f.control.quiesced == PressureFixture::Asked{victim});
  CHECK(f.pressure.suspends_for(asker));
  f.settle();
  CHECK(f.is_away(victim));
  CHECK_FALSE(f.pressure.suspends_for(asker));
  // The memory is there: an allocation that fails now has another reason.
  CHECK(f.pressure.relieve(asker, 0, 70 * kMiB) == SuspensionRelief::none);
}

TEST_CASE("a session that was not quiet is asked again after a while, and another one gives way meanwhile") {
  PressureFixture f;
  const SessionId asker = f.begin("anna", 20), victim = f.begin("ben", 40), other = f.begin("carl", 40);
  f.idle[asker].reset(), f.idle[other].reset();
  for (unsigned attempt = 0; attempt < 3; ++attempt) {
    CHECK(f.pressure.relieve(asker, 0, 30 * kMiB) == SuspensionRelief::coming);
    REQUIRE(f.control.quiesced == PressureFixture::Asked{victim});
    f.answer(victim, "its program made calls a moment ago");
    CHECK(f.pressure.relieve(asker, 0, 30 * kMiB) == SuspensionRelief::perhaps);
    CHECK(f.control.quiesced.empty());
    f.now += std::chrono::milliseconds(kVictimRetryMs << attempt);
  }
  CHECK(f.pressure.relieve(asker, 0, 30 * kMiB) == SuspensionRelief::coming);
  f.answer(victim, "its program made calls a moment ago");
  f.idle[other] = 1h;
  CHECK(f.pressure.relieve(asker, 0, 30 * kMiB) == SuspensionRelief::coming);
  CHECK(f.control.quiesced == PressureFixture::Asked{other});
}

TEST_CASE("sessions are suspended for one asker of a GPU at a time, and others do not return meanwhile") {
  PressureFixture f;
  const SessionId asleep = f.begin("carl", 10);
  f.suspensions.suspend(asleep, [](const auto&) {});
  f.settle();
  const SessionId asker = f.begin("anna", 40), first = f.begin("ben", 30), second = f.begin("ben", 30);
  f.idle[asker].reset();
  CHECK(f.pressure.relieve(asker, 0, 20 * kMiB) == SuspensionRelief::coming);
  REQUIRE(f.control.quiesced.size() == 1);
  f.call(asleep);
  f.handle_posted();
  CHECK(f.control.quiesced.size() == 1);
  CHECK_FALSE(f.pressure.may_return(*f.registry.find(asleep)));
  CHECK(f.pressure.may_return(*f.registry.find(asker)));
  f.settle();
  CHECK(f.is_away(first) != f.is_away(second));
  CHECK(f.registry.find(asleep)->suspension == SuspensionState::resuming);
}

TEST_CASE("a session with several GPUs returns when there is room on all, and nobody is suspended in vain") {
  PressureFixture f;
  const SessionId pair = f.begin("anna", 60, {0, 1});
  f.suspensions.suspend(pair, [](const auto&) {});
  f.settle();
  const SessionId here = f.begin("ben", 60, {0}), there = f.begin("carl", 60, {1});
  f.idle[there].reset();
  f.call(pair);
  f.handle_posted();
  CHECK(f.control.quiesced.empty());
  f.idle[there] = 1h;
  f.poll();
  CHECK(f.control.quiesced == PressureFixture::Asked{here, there});
  f.settle();
  CHECK(f.is_away(here));
  CHECK(f.is_away(there));
}

TEST_CASE("a program takes the GPUs for which least has to move") {
  PressureFixture f;
  f.begin("anna", 90, {0});
  const SessionId second = f.begin("ben", 60, {1});
  const SessionId third = f.begin("ben", 70, {2});
  f.wait("carl", 50, {0, 1, 2});
  f.poll();
  CHECK(f.control.quiesced == PressureFixture::Asked{second});
  f.settle();
  f.queue.clear();
  f.memory.sessions.at(second).bytes = 0;
  f.wait("carl", 50, {0, 1, 2}, 2);
  f.poll();
  CHECK(f.control.quiesced == PressureFixture::Asked{third});
}
