// Whose turn it is, and who holds up whom: tenants that come again and again, and memory that a tenant has already.
#include <algorithm>
#include <map>
#include <set>
#include <vector>

#include <doctest/doctest.h>

#include "test/scheduler/placement_fixture.hpp"

namespace gpuwire::scheduler {
namespace {

// One device of 80 GiB, of which a tenant may have 60.
struct Large {
  std::map<TenantId, uint64_t> used;  // without a reservation
  std::map<SessionId, uint64_t> used_by;
  Placement placement{std::vector<Placement::Device>{{80 * kGiB}}};
  std::map<SessionId, PlacementRequest> runs;

  static constexpr TenantId kGuaranteed{77};  // 10 GiB

  uint64_t held(TenantId tenant) const {
    uint64_t sum = used.contains(tenant) ? used.at(tenant) : 0;
    for (const auto& [session, request] : runs) sum += request.tenant == tenant ? request.memory_bytes : 0;
    return sum;
  }
  uint64_t guaranteed(TenantId tenant) const { return tenant == kGuaranteed ? 10 * kGiB : 0; }
  uint64_t free(TenantId tenant) const {
    uint64_t others = tenant == kGuaranteed ? 0 : std::max(held(kGuaranteed), guaranteed(kGuaranteed));
    std::set<TenantId> all;
    for (const auto& [other, bytes] : used) all.insert(other);
    for (const auto& [session, request] : runs) all.insert(request.tenant);
    for (TenantId other : all) {
      if (other != kGuaranteed && other != tenant) others += held(other);
    }
    const uint64_t most = std::min(60 * kGiB, 80 * kGiB - std::min(80 * kGiB, others));
    return most - std::min(most, held(tenant));
  }
  Large() {
    placement.set_memory(
        {.free_now = [this](TenantId tenant, DeviceIndex) { return free(tenant); },
         .most = [](TenantId, DeviceIndex) { return 60 * kGiB; },
         .held = [this](TenantId tenant, DeviceIndex) { return held(tenant); },
         .held_by = [this](SessionId session,
                           DeviceIndex) { return used_by.contains(session) ? used_by.at(session) : 0; },
         .guaranteed = [this](TenantId tenant, DeviceIndex) { return guaranteed(tenant); },
         .reserved = {},
         .guaranteed_to_others = {},
         .reserve = {}});
  }
  bool begins(const PlacementRequest& request) {
    if (devices_of(placement.ask(request)).empty()) return false;
    runs[request.session] = request;
    return true;
  }
  // Its program takes what it has not reserved.
  void takes(const PlacementRequest& request, uint64_t gib) {
    used[request.tenant] += gib * kGiB;
    used_by[request.session] += gib * kGiB;
  }
  void ends(const PlacementRequest& request) {
    placement.leave(request.session);
    runs.erase(request.session);
    used[request.tenant] -= used_by[request.session];
    used_by.erase(request.session);
  }
};

PlacementRequest of_tenant(TenantId tenant, PlacementRequest request) {
  request.tenant = tenant;
  return request;
}

}  // namespace

TEST_CASE("somebody who comes with one session is not behind all of another tenant's") {
  Placement placement(std::vector<Placement::Device>{{16 * kGiB, 1}});
  REQUIRE(devices_of(placement.ask(asks(99))).size() == 1);
  for (uint64_t session = 1; session <= 32; ++session)
    CHECK(place_of(placement.ask(of_tenant(TenantId(1), asks(session)))) == session);
  CHECK(place_of(placement.ask(of_tenant(TenantId(2), asks(50)))) == 2);
  CHECK(place_of(placement.ask(of_tenant(TenantId(2), asks(51)))) == 4);
  CHECK(place_of(placement.ask(of_tenant(TenantId(3), asks(60)))) == 3);
  auto last = SessionId(99);
  std::vector<uint64_t> order;
  while (order.size() < 6) {
    placement.leave(last);
    const auto started = placement.start_waiting();
    REQUIRE(started.size() == 1);
    last = started.front().first;
    order.push_back(uint64_t(last));
  }
  CHECK(order == std::vector<uint64_t>{1, 50, 60, 2, 51, 3});
}

TEST_CASE("a tenant that returns again and again is served as often as the tenants that wait") {
  Placement placement(std::vector<Placement::Device>{{16 * kGiB, 1}});
  REQUIRE(devices_of(placement.ask(asks(99))).size() == 1);
  for (uint64_t session = 1; session <= 4; ++session) placement.ask(of_tenant(TenantId(1), asks(session)));
  auto last = SessionId(99);
  std::string tenants;
  for (uint64_t session = 100; tenants.size() < 8; ++session) {
    placement.ask(of_tenant(TenantId(2), asks(session)));
    placement.leave(last);
    const auto started = placement.start_waiting();
    REQUIRE(started.size() == 1);
    last = started.front().first;
    tenants += uint64_t(last) < 100 ? '1' : '2';
  }
  CHECK(tenants == "12121212");
}

TEST_CASE("time that a tenant had while nobody waited is held against nobody") {
  Placement placement(std::vector<Placement::Device>{{16 * kGiB, 1}});
  for (uint64_t session = 1; session <= 10; ++session) {
    REQUIRE(devices_of(placement.ask(of_tenant(TenantId(1), asks(session)))).size() == 1);
    if (session < 10) placement.leave(SessionId(session));
  }
  CHECK(place_of(placement.ask(of_tenant(TenantId(1), asks(11)))) == 1);
  CHECK(place_of(placement.ask(of_tenant(TenantId(2), asks(12)))) == 2);
}

TEST_CASE("a tenant that waits for memory that its own sessions have, reserved or not, holds up nobody") {
  for (const bool reserved : {true, false}) {
    CAPTURE(reserved);
    Large gpu;
    const PlacementRequest first = of_tenant(TenantId(1), asks(1, reserved ? 50 : 0, 1, ServiceClass::interactive));
    const PlacementRequest second = of_tenant(TenantId(1), asks(2, 50, 1, ServiceClass::interactive));
    REQUIRE(gpu.begins(first));
    if (!reserved) gpu.takes(first, 50);
    REQUIRE_FALSE(gpu.begins(second));
    // Far more often than anybody is overtaken: of its class and below it, with and without memory.
    for (uint64_t session = 10; session < 10 + 4 * kOvertakenMax; ++session) {
      const auto service_class = session % 2 ? ServiceClass::interactive : ServiceClass::batch;
      const PlacementRequest other = asks(session, session % 4 < 2 ? 0 : 10, 1, service_class);
      REQUIRE(gpu.begins(other));
      gpu.ends(other);
    }
    gpu.ends(first);
    CHECK(gpu.placement.start_waiting().size() == 1);
  }
}

TEST_CASE("a request beyond its tenant's limit holds up nobody, whatever others have") {
  Large gpu;
  const PlacementRequest neighbour = asks(9), own = of_tenant(TenantId(1), asks(1, 20)),
                         waits = of_tenant(TenantId(1), asks(2, 50));
  REQUIRE(gpu.begins(neighbour));
  gpu.takes(neighbour, 35);
  REQUIRE(gpu.begins(own));
  REQUIRE_FALSE(gpu.begins(waits));
  CHECK(gpu.begins(asks(3, 10, 1, ServiceClass::scavenger)));
}

TEST_CASE("a request that waits for a GPU of its own session keeps no other GPU from anybody") {
  Placement placement(std::vector<Placement::Device>{{16 * kGiB, 1}, {16 * kGiB, 1}});
  const PlacementRequest small = of_tenant(TenantId(1), asks(1)), both = of_tenant(TenantId(1), asks(2, 0, 2));
  REQUIRE(devices_of(placement.ask(small)) == std::vector<DeviceIndex>{0});
  REQUIRE(place_of(placement.ask(both)) == 1);
  CHECK(devices_of(placement.ask(asks(3, 0, 1, ServiceClass::scavenger))) == std::vector<DeviceIndex>{1});
}

TEST_CASE("a request that waits for others' memory keeps it from lower classes, and nothing else from anybody") {
  Large gpu;
  const PlacementRequest notebook = asks(1);
  REQUIRE(gpu.begins(notebook));
  gpu.takes(notebook, 30);
  REQUIRE_FALSE(gpu.begins(asks(2, 50, 1, ServiceClass::interactive)));
  CHECK_FALSE(gpu.begins(asks(3, 1)));
  for (uint64_t session = 10; session < 10 + 4 * kOvertakenMax; ++session) CHECK(gpu.begins(asks(session)));
  // What is guaranteed could not have been given to it.
  CHECK(gpu.begins(of_tenant(Large::kGuaranteed, asks(4, 6))));
  CHECK_FALSE(gpu.begins(of_tenant(Large::kGuaranteed, asks(5, 6))));
  gpu.ends(notebook);
  const auto started = gpu.placement.start_waiting();
  REQUIRE_FALSE(started.empty());
  CHECK(started[0].first == SessionId(2));
}

TEST_CASE("sessions that reserve nothing do not starve one that waits for memory") {
  Large gpu;
  std::vector<PlacementRequest> some;
  uint64_t session = 10;
  const auto one_more = [&] {
    const PlacementRequest request = asks(++session);
    if (!gpu.begins(request)) return false;
    gpu.takes(request, 10);
    some.push_back(request);
    return true;
  };
  for (int i = 0; i < 3; ++i) REQUIRE(one_more());
  const PlacementRequest large = asks(1, 55);
  REQUIRE_FALSE(gpu.begins(large));
  bool began = false;
  unsigned ended = 0;
  // Each time that a session ends another one comes.
  while (!began && ended < 100) {
    gpu.ends(some.front());
    some.erase(some.begin());
    ++ended;
    for (auto& [started, placed] : gpu.placement.start_waiting()) began |= started == large.session;
    if (!began) one_more();
  }
  CHECK(began);
  CHECK(ended <= 3 + kOvertakenMax + 3);
}

TEST_CASE("a session that runs already has its place, and what comes afterwards goes elsewhere or waits") {
  Placement placement(std::vector<Placement::Device>{{16 * kGiB, 1}, {16 * kGiB, 1}});
  placement.adopt(SessionId(7), TenantId(1), 0, {1});
  CHECK(devices_of(placement.ask(asks(1))) == std::vector<DeviceIndex>{0});
  CHECK(place_of(placement.ask(asks(2))) == 1);
  CHECK(placement.check() == "");
  placement.leave(SessionId(7));
  auto started = placement.start_waiting();
  REQUIRE(started.size() == 1);
  CHECK(started[0].second.devices == std::vector<DeviceIndex>{1});
}

TEST_CASE("a tenant at its number of sessions waits with the reason, and holds up nobody else") {
  Placement placement(std::vector<Placement::Device>{{16 * kGiB}});
  placement.set_places([](TenantId tenant, const std::map<TenantId, size_t>& running) -> std::string {
    return tenant == TenantId(1) && !running.empty() ? "no place is left" : "";
  });
  CHECK(devices_of(placement.ask(asks(1))) == std::vector<DeviceIndex>{0});
  PlacementRequest second = asks(2);
  second.tenant = TenantId(1);
  auto waits = placement.ask(second);
  REQUIRE(std::holds_alternative<Queued>(waits));
  CHECK(std::get<Queued>(waits).why == "no place is left");
  CHECK(devices_of(placement.ask(asks(3))) == std::vector<DeviceIndex>{0});
  placement.leave(SessionId(1));
  CHECK(placement.start_waiting().empty());
  placement.leave(SessionId(3));
  auto started = placement.start_waiting();
  REQUIRE(started.size() == 1);
  CHECK(started[0].first == SessionId(2));
}

}  // namespace gpuwire::scheduler
