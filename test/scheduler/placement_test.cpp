// Which GPUs a session gets, what is refused, and who waits for what.
#include <algorithm>
#include <vector>

#include <doctest/doctest.h>

#include "test/scheduler/placement_fixture.hpp"

namespace gpuwire::scheduler {
TEST_CASE("sessions go to the least loaded devices") {
  Placement placement(std::vector<Placement::Device>{{16 * kGiB}, {16 * kGiB}, {16 * kGiB}});
  CHECK(devices_of(placement.ask(asks(1))) == std::vector<DeviceIndex>{0});
  CHECK(devices_of(placement.ask(asks(2))) == std::vector<DeviceIndex>{1});
  CHECK(devices_of(placement.ask(asks(3, 0, 2))) == std::vector<DeviceIndex>{0, 2});
  placement.leave(SessionId(1));
  CHECK(devices_of(placement.ask(asks(4, 0, 2))) == std::vector<DeviceIndex>{0, 1});
}

TEST_CASE("an impossible request is refused with the reason") {
  Placement placement(std::vector<Placement::Device>{{16 * kGiB}, {8 * kGiB}});
  placement.set_memory(
      {.free_now = {},
       .most = [](TenantId tenant, DeviceIndex) { return tenant == TenantId(7) ? 4 * kGiB : 64 * kGiB; },
       .held = {},
       .held_by = {},
       .guaranteed = {},
       .reserved = {},
       .guaranteed_to_others = {},
       .reserve = {}});
  CHECK(reason_of(placement.ask(asks(1, 0, 3))) == "3 GPUs asked for, and this server has 2 GPUs for the tenant");
  CHECK(reason_of(placement.ask(asks(2, 20))) ==
        "20 GiB asked for, and the tenant can never have that much: 16 GiB at most on a GPU");
  CHECK(reason_of(placement.ask(asks(3, 12, 2))) ==
        "12 GiB on each of 2 GPUs asked for, and the tenant can never have that much: 16 GiB at most on a GPU, and "
        "enough on 1 GPU only");
  CHECK(reason_of(placement.ask(asks(7, 6))).find("4 GiB at most") != std::string::npos);
  CHECK(placement.waiting().empty());
}

TEST_CASE("bytes that one session was promised are not promised to the next before they are taken") {
  Placement placement(std::vector<Placement::Device>{{16 * kGiB}});
  CHECK(devices_of(placement.ask(asks(1, 10))).size() == 1);
  CHECK(place_of(placement.ask(asks(2, 10))) == 1);
  CHECK(devices_of(placement.ask(asks(3, 6))).size() == 1);
  placement.leave(SessionId(1));
  CHECK(placement.start_waiting().size() == 1);
}

TEST_CASE("a request that waits for memory learns how much of it running programs have reserved") {
  Placement placement(std::vector<Placement::Device>{{16 * kGiB}, {16 * kGiB}});
  placement.set_memory({.free_now = [](TenantId, DeviceIndex) { return 3 * kGiB; },
                        .most = {},
                        .held = {},
                        .held_by = {},
                        .guaranteed = {},
                        .reserved = [](DeviceIndex device) { return (device + 1) * 5 * kGiB; },
                        .guaranteed_to_others = {},
                        .reserve = {}});
  auto why = [&](PlacementRequest request) {
    auto answer = placement.ask(request);
    REQUIRE(std::holds_alternative<Queued>(answer));
    return std::get<Queued>(answer).why;
  };
  CHECK(why(asks(1, 4)) == "4 GiB of 16 GiB are not free on 1 GPU now; 15 GiB are reserved by programs that run");
  PlacementRequest on_second = asks(2, 4, 1, ServiceClass::realtime);
  on_second.allowed = {1};
  CHECK(why(on_second) == "4 GiB of 16 GiB are not free on 1 GPU now; 10 GiB are reserved by programs that run");
}

TEST_CASE("a small request overtakes a large one of its class a few times, then the large one is served first") {
  Placement placement(std::vector<Placement::Device>{{16 * kGiB, 3}});
  REQUIRE(devices_of(placement.ask(asks(1, 10))).size() == 1);
  REQUIRE(place_of(placement.ask(asks(2, 10))) == 1);
  unsigned served = 0;
  for (uint64_t small = 10; small < 10 + 3 * kOvertakenMax; ++small) {
    if (devices_of(placement.ask(asks(small, 1))).empty()) break;
    ++served;
    placement.leave(SessionId(small));
  }
  CHECK(served == kOvertakenMax);
  placement.leave(SessionId(1));
  auto started = placement.start_waiting();
  REQUIRE(started.size() == 2);
  CHECK(started[0].first == SessionId(2));
}

TEST_CASE("a lower class does not overtake a higher one, and a higher one stands in front") {
  Placement placement(std::vector<Placement::Device>{{16 * kGiB}});
  REQUIRE(devices_of(placement.ask(asks(1, 10))).size() == 1);
  CHECK(place_of(placement.ask(asks(2, 10))) == 1);
  CHECK(place_of(placement.ask(asks(3, 10, 1, ServiceClass::interactive))) == 1);
  CHECK(place_of(placement.ask(asks(4, 1))) == 3);
  placement.leave(SessionId(1));
  auto started = placement.start_waiting();
  REQUIRE(started.size() == 2);
  CHECK(started[0].first == SessionId(3));
  CHECK(started[1].first == SessionId(4));
}

TEST_CASE("a request that waits for its own tenant's session to end holds up nobody") {
  Placement placement(std::vector<Placement::Device>{{16 * kGiB}});
  PlacementRequest first = asks(1), second = asks(2);
  first.tenant_sessions_max = second.tenant_sessions_max = 1;
  second.tenant = first.tenant;
  second.service_class = ServiceClass::realtime;
  CHECK(devices_of(placement.ask(first)).size() == 1);
  auto answer = placement.ask(second);
  REQUIRE(place_of(answer) == 1);
  CHECK(std::get<Queued>(answer).why.find("(1)") != std::string::npos);
  CHECK(devices_of(placement.ask(asks(3))).size() == 1);
}

TEST_CASE("a request that waits for its own user's memory says so, holds up nobody, and begins with the user's room") {
  Placement placement(std::vector<Placement::Device>{{.bytes = 100 * kGiB}});
  std::map<SessionId, uint64_t> used;
  Placement::Memory memory;
  memory.held_by = [&](SessionId session, DeviceIndex) { return used[session]; };
  placement.set_memory(std::move(memory));
  auto ask = [&](uint64_t session, uint64_t gib, const char* user, uint64_t most_gib = 40) {
    PlacementRequest request = asks(session, gib);
    request.tenant = TenantId(1), request.user = user, request.user_memory_max_bytes = most_gib * kGiB;
    return placement.ask(request);
  };
  CHECK(reason_of(ask(1, 41, "anna")) ==
        "41 GiB asked for, and the user can never have that much: 40 GiB at most on a GPU");
  CHECK(devices_of(ask(2, 0, "anna")).size() == 1);
  used[SessionId(2)] = 15 * kGiB;  // it has not reserved them
  CHECK(devices_of(ask(3, 20, "anna")).size() == 1);
  const PlacementAnswer waits = ask(4, 10, "anna");
  REQUIRE(place_of(waits) == 1);
  CHECK(std::get<Queued>(waits).why == "the user has reached the limit of memory (40 GiB on a GPU)");
  CHECK_FALSE(std::get<Queued>(waits).awaits_end);
  CHECK(devices_of(ask(5, 40, "ben")).size() == 1);
  CHECK(devices_of(ask(6, 30, "", 0)).size() == 1);
  CHECK(placement.start_waiting().empty());
  placement.leave(SessionId(2));
  CHECK(placement.start_waiting().size() == 1);
}

TEST_CASE("the reservation of a suspended session is free for others until the session returns") {
  Placement placement(std::vector<Placement::Device>{{.bytes = 100 * kGiB}});
  SessionId away{};
  Placement::Memory memory;
  memory.away = [&](SessionId session) { return session == away; };
  placement.set_memory(std::move(memory));
  CHECK(devices_of(placement.ask(asks(1, 60))).size() == 1);
  REQUIRE(place_of(placement.ask(asks(2, 60))) == 1);
  CHECK(placement.start_waiting().empty());
  away = SessionId(1);
  CHECK(placement.start_waiting().size() == 1);
  REQUIRE(place_of(placement.ask(asks(3, 60))) == 1);
  away = SessionId(2);
  CHECK(placement.start_waiting().empty());
}

TEST_CASE("sessions that lack nothing but memory are listed in the queue's order, with the devices that may have it") {
  Placement placement(std::vector<Placement::Device>{{.bytes = 100 * kGiB}, {.bytes = 40 * kGiB}});
  CHECK(devices_of(placement.ask(asks(1, 60))) == std::vector<DeviceIndex>{0});
  CHECK(devices_of(placement.ask(asks(2, 20))) == std::vector<DeviceIndex>{1});
  CHECK(placement.waiting_for_memory().empty());
  REQUIRE(place_of(placement.ask(asks(3, 50))) == 1);
  REQUIRE(place_of(placement.ask(asks(4, 30, 2))) == 2);
  PlacementRequest bound = asks(5, 90);
  bound.tenant = TenantId(1);
  bound.tenant_sessions_max = 1;
  REQUIRE(place_of(placement.ask(bound)) == 3);
  REQUIRE(place_of(placement.ask(asks(6, 41))) == 4);
  const std::vector<MemoryWait> waits = placement.waiting_for_memory();
  REQUIRE(waits.size() == 3);
  CHECK((waits[0].session == SessionId(3) && waits[0].memory_bytes == 50 * kGiB && waits[0].gpus == 1));
  CHECK(waits[0].devices == std::vector<DeviceIndex>{0});  // the other one can never have so much
  CHECK((waits[1].session == SessionId(4) && waits[1].gpus == 2));
  CHECK(waits[1].devices == std::vector<DeviceIndex>{0, 1});
  CHECK(waits[2].session == SessionId(6));
  // A session of a lower class gets no memory that a higher class waits for.
  PlacementRequest low = asks(7, 45, 1, ServiceClass::scavenger);
  REQUIRE(place_of(placement.ask(low)) == 5);
  CHECK(placement.waiting_for_memory().size() == 3);
}

TEST_CASE("no session begins on a drained device, and one that finds no other waits and holds up nobody") {
  Placement placement(std::vector<Placement::Device>{{.bytes = 100 * kGiB}, {.bytes = 40 * kGiB}});
  std::vector<DeviceIndex> drained = {0};
  placement.set_drained([&](DeviceIndex device) { return std::ranges::count(drained, device) != 0; });
  CHECK(devices_of(placement.ask(asks(1))) == std::vector<DeviceIndex>{1});
  CHECK(devices_of(placement.ask(asks(2, 10))) == std::vector<DeviceIndex>{1});
  auto why = [&](const PlacementRequest& request) {
    const PlacementAnswer answer = placement.ask(request);
    REQUIRE(std::holds_alternative<Queued>(answer));
    CHECK_FALSE(std::get<Queued>(answer).awaits_end);
    return std::get<Queued>(answer).why;
  };
  CHECK(why(asks(3, 50)) == "GPU 0 is drained");  // the other one can never have so much
  CHECK(why(asks(4, 0, 2)) == "GPU 0 is drained");
  CHECK(placement.waiting_for_memory().empty());
  CHECK(devices_of(placement.ask(asks(5, 30))) == std::vector<DeviceIndex>{1});
  CHECK(std::holds_alternative<Queued>(placement.preview(asks(6, 50))));
  drained = {0, 1};
  CHECK(why(asks(7, 0)) == "the GPUs 0, 1 are drained");
  drained = {0};
  CHECK(reason_of(placement.ask(asks(8, 101))).find("never") != std::string::npos);
  CHECK(placement.start_waiting().size() == 1);  // session 7
  drained.clear();
  const auto started = placement.start_waiting();
  REQUIRE(started.size() == 2);
  CHECK(started[0].second.devices == std::vector<DeviceIndex>{0});
  CHECK(started[1].second.devices == std::vector<DeviceIndex>{0, 1});
  CHECK(placement.check().empty());
}

TEST_CASE("the memory that a program waits for is that of devices that are not drained") {
  Placement placement(std::vector<Placement::Device>{{.bytes = 100 * kGiB}, {.bytes = 40 * kGiB}});
  placement.set_drained([](DeviceIndex device) { return device == 0; });
  REQUIRE(devices_of(placement.ask(asks(1, 20))) == std::vector<DeviceIndex>{1});
  REQUIRE(place_of(placement.ask(asks(2, 30))) == 1);
  CHECK(placement.waiting()[0].second.why == "30 GiB of 40 GiB are not free on 1 GPU now");
  const std::vector<MemoryWait> waits = placement.waiting_for_memory();
  REQUIRE(waits.size() == 1);
  CHECK(waits[0].devices == std::vector<DeviceIndex>{1});
}

TEST_CASE("a program awaits the end of others only where nothing of its own tenant holds it up") {
  struct Row {
    const char* what;
    bool awaits;
    std::function<void(PlacementRequest&)> change;
    uint64_t most_gib = 100, held_gib = 0;
    const char *held = "", *place = "";
  };
  const auto nothing = [](PlacementRequest&) {};
  for (const Row& row :
       {Row{"no place on the GPU", true, nothing}, Row{"no place at the server", true, nothing, 100, 0, "", "full"},
        Row{"no memory", true, [](PlacementRequest& asked) { asked.memory_bytes = 60 * kGiB; }},
        Row{"the tenant's memory", false, [](PlacementRequest& asked) { asked.memory_bytes = 30 * kGiB; }, 40, 20},
        Row{"the tenant's sessions", false, [](PlacementRequest& asked) { asked.tenant_sessions_max = 1; }},
        Row{"the user's sessions", false,
            [](PlacementRequest& asked) { asked.user = "anna", asked.user_sessions_max = 1; }},
        Row{"a budget", false, nothing, 100, 0, "the budget is used up"}}) {
    CAPTURE(row.what);
    Placement placement(std::vector<Placement::Device>{{.bytes = 100 * kGiB, .sessions_max = 2}});
    Placement::Memory memory;
    memory.most = [&](TenantId, DeviceIndex) { return row.most_gib * kGiB; };
    memory.held = [&](TenantId, DeviceIndex) { return row.held_gib * kGiB; };
    placement.set_memory(std::move(memory));
    placement.set_held([&](SessionId session) { return session == SessionId(3) ? row.held : ""; });
    placement.set_places(
        [&](TenantId, const std::map<TenantId, size_t>& running) { return running.size() == 2 ? row.place : ""; });
    PlacementRequest own = asks(1);
    own.tenant = TenantId(3), own.user = "anna";
    REQUIRE(devices_of(placement.ask(own)).size() == 1);
    REQUIRE(devices_of(placement.ask(asks(2, row.most_gib == 100 ? 50 : 0))).size() == 1);
    PlacementRequest asked = asks(3);
    row.change(asked);
    const PlacementAnswer answer = placement.ask(asked);
    REQUIRE(place_of(answer) == 1);
    CHECK(std::get<Queued>(answer).awaits_end == row.awaits);
    CHECK(placement.waiting().front().second.awaits_end == row.awaits);
  }
}

}  // namespace gpuwire::scheduler
