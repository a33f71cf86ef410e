// Spares as processes: their starts, their number, and that they make way.
#include <atomic>
#include <list>

#include <doctest/doctest.h>

#include "server/broker/broker.hpp"
#include "test/server/broker/caller.hpp"
#include "test/server/broker/gated_workers.hpp"
#include "test/server/broker/running_broker.hpp"

using namespace gpuwire;
using namespace gpuwire::test;

namespace {

// Memory for as many prewarmed workers as the test sets.
class Room final : public server::PrewarmedMemory {
 public:
  size_t prewarmed_max(scheduler::DeviceIndex) const override { return max; }
  void prewarmed_changed(scheduler::DeviceIndex device, size_t contexts) override {
    CHECK(device == 0);
    now = contexts;
    if (contexts > most) most = contexts;
  }
  std::atomic<size_t> max{SIZE_MAX};
  std::atomic<size_t> now{0}, most{0};
};

constexpr size_t kWorkersMax = 10'000;

// Sessions that come at once, are served and leave.
void burst(RunningBroker& broker, size_t sessions) {
  std::list<Caller> callers;
  for (size_t i = 0; i < sessions; ++i) callers.emplace_back(broker, server::LoginRequest{.tenant = "open"});
  for (Caller& one : callers) CHECK(one.served_with() == "all");
  for (Caller& one : callers) one.leave();
}

bool waited_for_worker(RunningBroker& broker, const Caller& caller) {
  bool waited = false;
  broker.act([&](Broker& of) {
    const server::SessionRecord* session = of.registry().find(caller.session());
    REQUIRE(session);
    waited = session->waited_for_worker;
  });
  return waited;
}

}  // namespace

TEST_CASE("the next prewarmed worker starts when one is taken, and not when its session's client comes or leaves") {
  GatedWorkers workers;
  Room room;
  RunningBroker broker(workers.arguments(), {.least = 1, .most = 1}, room);
  workers.let_begin(1);
  REQUIRE(broker.port() != 0);
  CHECK(eventually([] { return fake_workers() == 1; }));
  std::atomic<bool> granted{false};
  scheduler::SessionId session{};
  broker.act([&](Broker& of) {
    session =
        of.sessions().request({.tenant = "open"}, [&](scheduler::SessionId, const server::AdmissionAnswer& answer) {
          granted = std::holds_alternative<server::AdmissionGranted>(answer);
        });
  });
  CHECK(granted);
  CHECK(eventually([] { return fake_workers() == 2; }));
  broker.act([&](Broker& of) { of.sessions().cancel(session, "the test is over"); });
}

TEST_CASE("a session that finds no worker ready is counted, and one that finds a prewarmed worker is not") {
  GatedWorkers workers;
  Room room;
  RunningBroker broker(workers.arguments(), {.least = 1, .most = 1}, room);
  workers.let_begin(1);
  REQUIRE(broker.port() != 0);
  Caller first(broker, {.tenant = "open"}), second(broker, {.tenant = "open"});
  CHECK(first.told() == "granted");
  CHECK_FALSE(waited_for_worker(broker, first));
  CHECK(second.told().empty());
  CHECK(waited_for_worker(broker, second));
  workers.let_begin(2);
  CHECK(second.served_with() == "all");
  CHECK(waited_for_worker(broker, second));
}

TEST_CASE("a client whose session waits for long for a worker is told its place, and is served all the same") {
  GatedWorkers workers;
  Room room;
  RunningBroker broker(workers.arguments(), {.least = 1, .most = 1}, room);
  workers.let_begin(1);
  REQUIRE(broker.port() != 0);
  Caller first(broker, {.tenant = "open"}), second(broker, {.tenant = "open"}), third(broker, {.tenant = "open"});
  CHECK(first.told() == "granted");
  CHECK(eventually([&] { return third.told() == "place 2"; }));
  CHECK(second.told() == "place 1");
  workers.let_begin(2);
  CHECK(second.served_with() == "all");
  CHECK(third.served_with() == "all");
}

TEST_CASE("sessions that come at once raise the number of prewarmed workers up to the most; it falls in a pause") {
  GatedWorkers workers;
  Room room;
  RunningBroker broker(workers.arguments(), {.least = 1, .most = 4}, room);
  workers.let_begin(kWorkersMax);
  REQUIRE(broker.port() != 0);
  CHECK(eventually([&] {
    burst(broker, 6);
    return room.most == 4;
  }));
  CHECK(eventually([&] { return room.now == 1; }));
  CHECK(eventually([&] { return fake_workers() == 1; }));
  CHECK(room.most == 4);
}

TEST_CASE("no prewarmed worker is started that memory has no room for, whoever comes") {
  GatedWorkers workers;
  Room room;
  room.max = 2;
  RunningBroker broker(workers.arguments(), {.least = 1, .most = 8}, room);
  workers.let_begin(kWorkersMax);
  REQUIRE(broker.port() != 0);
  for (int i = 0; i < 10; ++i) burst(broker, 6);
  CHECK(room.most <= 2);
  // No prewarmed worker, if a guarantee needs the memory of the minimum: each session starts its own worker.
  room.max = 0;
  broker.act([](Broker& of) { of.workers().keep_at_most(0, 0); });
  CHECK(eventually([&] { return room.now == 0; }));
  burst(broker, 3);
  CHECK(eventually([&] { return fake_workers() == 0; }));
}

TEST_CASE("prewarmed workers that have not started make way first, and that is no failed start") {
  GatedWorkers workers;
  Room room;
  RunningBroker broker(workers.arguments(), {.least = 3, .most = 3}, room);
  workers.let_begin(1);
  REQUIRE(broker.port() != 0);
  REQUIRE(eventually([&] { return fake_workers() == 3; }));
  room.max = 1;
  broker.act([](Broker& of) { of.workers().keep_at_most(0, 1); });
  CHECK(eventually([&] { return fake_workers() == 1 && room.now == 1; }));
  Caller caller(broker, {.tenant = "open"});
  CHECK(caller.told() == "granted");
  room.max = 3;
  broker.act([](Broker& of) { of.workers().keep_at_most(0, 3); });  // there is room again
  CHECK(eventually([&] { return fake_workers() == 4; }));
  caller.leave();
}
