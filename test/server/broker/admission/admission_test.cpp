// Requests of tenants against four GPUs, without sockets and processes.
#include "server/broker/admission/admission.hpp"

#include <optional>
#include <set>

#include <doctest/doctest.h>

#include "test/server/broker/free_memory.hpp"

using namespace gpuwire;
using namespace gpuwire::server;
using scheduler::SessionId;
using Kind = SessionEvent::Kind;

namespace {

constexpr uint64_t kGiB = uint64_t(1) << 30;

std::vector<ServerDevice> some_devices(unsigned count) {
  std::vector<ServerDevice> devices;
  for (unsigned i = 0; i < count; ++i) devices.push_back({.index = i, .bytes = 16 * kGiB});
  return devices;
}

// An admission whose sessions the test drives.
struct Desk {
  explicit Desk(std::vector<TenantConfiguration> of, AdmissionLimits limits = {}, unsigned gpus = 4)
      : tenants(std::move(of)),
        admission(registry, tenants, std::move(limits),
                  {.placed =
                       [this](SessionId session, std::vector<scheduler::DeviceIndex> devices) {
                         placed.push_back(session);
                         registry.admitted(session, std::move(devices));
                       },
                   .queued =
                       [this](SessionId session, const AdmissionQueued& place) {
                         registry.queued(session, place.place, place.waiting, place.why);
                         answers[session].push_back(place);
                       },
                   .refused =
                       [this](SessionId session, RefusalCause cause, std::string why) {
                         registry.refused(session, cause, why);
                         answers[session].push_back(AdmissionRefused{cause, why});
                         admission.over(session);
                       },
                   .crowded_out = [this](SessionId session, std::string) { crowded_out.push_back(session); }}) {
    admission.devices_known(some_devices(gpus));
    registry.observe([this](const SessionEvent& event) { events.push_back(event.kind); });
  }
  SessionId ask(LoginRequest request) {
    unsigned gpus = request.gpus;
    SessionId session = registry.add(admission.record_of(std::move(request))).number;
    admission.ask(session, gpus);
    return session;
  }
  SessionId ask(const char* tenant) { return ask(LoginRequest{.tenant = tenant}); }
  std::vector<scheduler::DeviceIndex> devices(SessionId session) const {
    return registry.find(session) ? registry.find(session)->devices : std::vector<scheduler::DeviceIndex>{};
  }
  const AdmissionRefused* refused(SessionId session) const { return last<AdmissionRefused>(session); }
  // Returns the place in the queue; 0: not queued.
  size_t place(SessionId session) const {
    auto* queued = last<AdmissionQueued>(session);
    return queued ? queued->place : 0;
  }
  void end(SessionId session) {
    registry.ended(session, 0, "the client left");
    admission.over(session);
  }
  void leave(SessionId session) {
    registry.refused(session, RefusalCause::client_gone, "it left");
    admission.over(session);
  }

  TenantDirectory tenants;
  SessionRegistry registry;
  std::vector<SessionId> placed, crowded_out;
  std::vector<Kind> events;
  std::map<SessionId, std::vector<AdmissionAnswer>> answers;
  Admission admission;

 private:
  template <class Answer>
  const Answer* last(SessionId session) const {
    auto found = answers.find(session);
    return found == answers.end() ? nullptr : std::get_if<Answer>(&found->second.back());
  }
};

}  // namespace

TEST_CASE("workers are prewarmed for offered GPUs only, and for those that a tenant may use") {
  using Sets = std::vector<std::vector<scheduler::DeviceIndex>>;
  CHECK(Desk({{.name = "anna"}, {.name = "whole", .gpus_wanted = 0}}).admission.usual_sets() ==
        Sets{{0}, {0, 1, 2, 3}, {1}, {2}, {3}});
  CHECK(Desk({{.name = "anna"}}, {.gpus = {1, 2}}).admission.usual_sets() == Sets{{1}, {2}});
  CHECK(Desk({{.name = "whole", .gpus_wanted = 0}}, {.gpus = {1, 2}}).admission.usual_sets() == Sets{{1, 2}});
  CHECK(Desk({{.name = "anna", .gpus_allowed = {2, 3}}}, {.gpus = {1, 2}}).admission.usual_sets() == Sets{{2}});
  CHECK(Desk({{.name = "pair", .gpus_wanted = 2}}).admission.usual_sets().empty());
  CHECK(Desk({{.name = "anna"}}, {}, 1).admission.usual_sets() == Sets{{0}});
}

TEST_CASE("a session is in the registry from its request to its end, and observers hear of it") {
  Desk desk({{.name = "ben", .service_class = scheduler::ServiceClass::interactive}});
  SessionId session = desk.ask("ben");
  REQUIRE(desk.registry.find(session));
  CHECK(desk.registry.find(session)->service_class == scheduler::ServiceClass::interactive);
  CHECK(desk.registry.find(session)->state == SessionState::starting);
  CHECK(desk.answers.empty());
  desk.registry.begun(session, "a program");
  CHECK(desk.registry.find(session)->state == SessionState::running);
  desk.end(session);
  CHECK_FALSE(desk.registry.find(session));
  CHECK(desk.events == std::vector{Kind::admitted, Kind::begun, Kind::ended});
}

TEST_CASE("a tenant that is not known is refused, and so is every one after the end of the server has begun") {
  Desk desk({{.name = "anna"}});
  SessionId stranger = desk.ask("carl");
  REQUIRE(desk.refused(stranger));
  CHECK(desk.refused(stranger)->cause == RefusalCause::unauthorised);
  CHECK(desk.refused(stranger)->reason.find("carl") != std::string::npos);
  SessionId early = desk.ask("anna");
  desk.admission.close(RefusalCause::shutting_down, "good night");
  REQUIRE(desk.refused(early));
  CHECK(desk.refused(early)->reason == "good night");
  CHECK(desk.refused(desk.ask("anna")));
  CHECK(desk.registry.all().empty());
}

TEST_CASE("the server's limit of sessions counts those of programs and those of queries apart") {
  Desk desk({{.name = "anna"}}, {.sessions_max = 2});
  SessionId first = desk.ask("anna");
  desk.ask("anna");
  desk.ask({.tenant = "anna", .management = true});
  CHECK(desk.placed.size() == 3);
  desk.ask({.tenant = "anna", .management = true});
  SessionId asks = desk.ask({.tenant = "anna", .management = true});
  REQUIRE(desk.refused(asks));
  CHECK(desk.refused(asks)->reason == "all 2 sessions of the server that query NVML are in use");
  SessionId late = desk.ask("anna");
  CHECK(desk.place(late) == 1);
  CHECK(desk.registry.find(late)->why == "all 2 sessions of the server are in use");
  desk.leave(first);
  CHECK(desk.placed.size() == 5);
  CHECK(desk.placed.back() == late);
}

TEST_CASE("programs that begin at once beyond the server's sessions are all served, those that wait in their order") {
  Desk desk({{.name = "open", .queued_max = 32}}, {.sessions_max = 64});
  std::vector<SessionId> all;
  for (int i = 0; i < 90; ++i) all.push_back(desk.ask("open"));
  CHECK(desk.placed.size() == 64);
  for (SessionId session : all) CHECK_FALSE(desk.refused(session));
  for (size_t i = 0; i < 90; ++i) desk.end(all[i]);
  CHECK(desk.placed == all);
}

TEST_CASE(
    "a tenant that fills the queue keeps out neither a tenant with a guarantee nor one that has no session, in "
    "whatever order they come") {
  Desk desk(
      {{.name = "greedy", .sessions_max = 8, .queued_max = 1000},
       {.name = "anna", .service_class = scheduler::ServiceClass::interactive, .memory = {.guaranteed_bytes = kGiB}},
       {.name = "ben"},
       {.name = "carl", .gpu_memory = {{2, {.guaranteed_bytes = kGiB}}}}},
      {.sessions_max = 8, .queued_max = 56});
  size_t in = 0;
  for (int i = 0; i < 70; ++i) in += !desk.refused(desk.ask("greedy"));
  CHECK(in == 64 - 3);
  CHECK(desk.refused(desk.ask("greedy"))->reason == "the server's last 3 places are kept for tenants that have none");
  CHECK(desk.placed.size() == 8 - 3);
  CHECK_FALSE(desk.devices(desk.ask("ben")).empty());
  CHECK(desk.refused(desk.ask("ben")));  // the other places are reserved for the guarantees
  CHECK_FALSE(desk.devices(desk.ask("carl")).empty());
  CHECK_FALSE(desk.devices(desk.ask("anna")).empty());
  CHECK(desk.refused(desk.ask("anna"))->reason == "the server's queue is full: 64 programs run or wait");
}

TEST_CASE("where places are short, sessions without a connection of the tenant that has most of them end first") {
  Desk desk({{.name = "greedy"}, {.name = "anna"}, {.name = "ben"}}, {.sessions_max = 8});
  auto detached = [&](const char* tenant, int seconds) {
    const SessionId session = desk.ask(tenant);
    REQUIRE_FALSE(desk.devices(session).empty());
    desk.registry.begun(session, "a program");
    desk.registry.detached(session, std::chrono::seconds(seconds), "its connection was lost");
    return session;
  };
  const SessionId annas = detached("anna", 10);
  std::vector<SessionId> greedy;
  for (int i = 0; i < 6; ++i) greedy.push_back(detached("greedy", 100 - i));
  CHECK_FALSE(desk.devices(desk.ask("ben")).empty());
  CHECK(desk.crowded_out.empty());
  const SessionId second = desk.ask("ben");
  CHECK(desk.place(second) == 1);
  CHECK(desk.crowded_out == std::vector{greedy[5]});  // the session that has been detached for longest
  desk.end(greedy[5]);
  CHECK_FALSE(desk.devices(second).empty());
  const SessionId third = desk.ask("ben");
  CHECK(desk.crowded_out == std::vector{greedy[5], greedy[4]});
  desk.end(greedy[4]);
  CHECK_FALSE(desk.devices(third).empty());
  // Four and three places: a tenant that took one would have to give it back.
  desk.ask("ben");
  CHECK(desk.crowded_out.size() == 2);
  desk.ask("anna");
  CHECK(desk.crowded_out == std::vector{greedy[5], greedy[4], greedy[3]});
  // The tenant with most places makes no room for itself.
  desk.ask("greedy");
  CHECK(desk.crowded_out.size() == 3);
  CHECK(desk.registry.find(annas));
}

TEST_CASE("a session with a connection is never ended for its place, and nor is the only one of its tenant") {
  Desk desk({{.name = "greedy"}, {.name = "anna"}, {.name = "ben"}}, {.sessions_max = 3});
  for (int i = 0; i < 2; ++i) desk.registry.begun(desk.ask("greedy"), "a program");
  const SessionId annas = desk.ask("anna");
  desk.registry.begun(annas, "a program");
  desk.registry.detached(annas, std::chrono::seconds(10), "its connection was lost");
  CHECK(desk.place(desk.ask("ben")) == 1);
  CHECK(desk.crowded_out.empty());
}

TEST_CASE("no more than half of the places wait for tenants without a guarantee that may never come") {
  std::vector<TenantConfiguration> many;
  for (int i = 0; i < 100; ++i) many.push_back({.name = "student" + std::to_string(i)});
  Desk desk(std::move(many), {.sessions_max = 10});
  for (int i = 0; i < 10; ++i) CHECK_FALSE(desk.refused(desk.ask("student0")));
  CHECK(desk.placed.size() == 5);
  for (int i = 1; i <= 5; ++i) CHECK_FALSE(desk.devices(desk.ask(("student" + std::to_string(i)).c_str())).empty());
}

TEST_CASE(
    "a tenant has as many waiting sessions, and as many that ask NVML, as it may, and those of others do not count") {
  Desk desk({{.name = "anna", .sessions_max = 1, .queued_max = 2, .management_max = 3},
             {.name = "ben", .sessions_max = 1, .queued_max = 1}});
  desk.ask("anna");
  SessionId waits = desk.ask("anna");
  desk.ask("anna");
  SessionId late = desk.ask("anna");
  REQUIRE(desk.refused(late));
  CHECK(desk.refused(late)->reason == "the tenant has reached its limit of waiting programs (2)");
  CHECK(desk.place(waits) == 1);
  desk.ask("ben");
  CHECK(desk.place(desk.ask("ben")) != 0);
  desk.leave(waits);
  CHECK(desk.place(desk.ask("anna")) != 0);
  for (int i = 0; i < 3; ++i) CHECK_FALSE(desk.refused(desk.ask({.tenant = "anna", .management = true})));
  CHECK(desk.refused(desk.ask({.tenant = "anna", .management = true}))->reason ==
        "the tenant has reached its limit of sessions that query NVML (3)");
  CHECK_FALSE(desk.refused(desk.ask({.tenant = "ben", .management = true})));
}

TEST_CASE("a client that has waited for its tenant's longest time is refused, and nobody else") {
  Desk desk({{.name = "anna", .queue_time_max_ms = 60'000}, {.name = "ben"}}, {.sessions_per_gpu_max = 1}, 1);
  SessionId runs = desk.ask("anna"), waits = desk.ask("anna"), patient = desk.ask("ben");
  auto now = Admission::Clock::now();
  desk.admission.refuse_overdue(now + std::chrono::seconds(59));
  CHECK(desk.place(waits) == 1);
  desk.admission.refuse_overdue(now + std::chrono::seconds(61));
  REQUIRE(desk.refused(waits));
  CHECK(desk.refused(waits)->cause == RefusalCause::waited_too_long);
  CHECK(desk.refused(waits)->reason == "it has waited for 60 s, the longest that its tenant's programs may wait");
  CHECK(desk.place(patient) == 1);
  CHECK(desk.registry.find(runs));
}

TEST_CASE("a session gets the GPUs that it asks for, of those that its tenant may use and the server offers") {
  Desk desk({{.name = "anna", .gpus_allowed = {1, 2, 3}}, {.name = "all", .gpus_wanted = 0}}, {.gpus = {0, 1, 2}});
  CHECK(desk.devices(desk.ask("anna")) == std::vector<unsigned>{1});
  CHECK(desk.devices(desk.ask({.tenant = "anna", .gpus = 2})) == std::vector<unsigned>{1, 2});
  CHECK(desk.devices(desk.ask("all")) == std::vector<unsigned>{0, 1, 2});
  SessionId greedy = desk.ask({.tenant = "anna", .gpus = 3});
  REQUIRE(desk.refused(greedy));
  CHECK(desk.refused(greedy)->cause == RefusalCause::never_fits);
  CHECK(desk.refused(greedy)->reason.find("3 GPUs asked for") != std::string::npos);
}

namespace {

// Budgets that the test sets, by user.
struct SaidBudgets final : SessionBudgets {
  std::map<std::string, std::string> held;
  std::set<std::string> over;
  bool used_up(const SessionRecord& session) const override { return over.contains(session.user); }
  std::string why_held(const SessionRecord& session) const override {
    auto found = held.find(session.user);
    return found == held.end() ? std::string() : found->second;
  }
};

}  // namespace

TEST_CASE("a user waits for a place of its own, holds up nobody of the tenant, and is counted over a restart") {
  Desk desk({{.name = "course",
              .each_user = {.sessions_max = 1, .budget = {}},
              .users = {{"ben", {.sessions_max = 2, .budget = {}}}}}});
  auto ask = [&](const char* user) { return desk.ask(LoginRequest{.tenant = "course", .user = user}); };
  const SessionId anna = ask("anna"), second = ask("anna"), third = ask("anna"), ben = ask("ben"), bens = ask("ben");
  CHECK(desk.devices(anna).size() == 1);
  CHECK(desk.place(second) == 1);
  CHECK(desk.registry.find(second)->why == "the user has reached the limit of sessions (1)");
  CHECK(desk.devices(ben).size() == 1);
  CHECK(desk.devices(bens).size() == 1);
  CHECK(desk.place(ask("ben")) != 0);
  CHECK(desk.devices(ask("")).size() == 1);  // no particular user
  desk.end(anna);
  CHECK(desk.devices(second).size() == 1);
  CHECK(desk.devices(third).empty());  // both were judged in one pass, and one place was free
  SessionRecord carol = desk.admission.record_of({.tenant = "course", .user = "carol"});
  carol.number = SessionId(1000);
  carol.devices = {0};
  carol.state = SessionState::running;
  desk.registry.restore(carol);
  desk.admission.adopted(SessionId(1000));
  CHECK(desk.place(ask("carol")) != 0);
}

TEST_CASE(
    "a budget that is used up makes a scavenger of whom it concerns, and a hard one lets it wait with the reason") {
  Desk desk({{.name = "course"}, {.name = "lab"}}, {.sessions_per_gpu_max = 1}, 1);
  SaidBudgets budgets;
  desk.admission.set_budgets(budgets);
  auto ask = [&](const char* user) { return desk.ask(LoginRequest{.tenant = "course", .user = user}); };
  const SessionId running = ask("anna"), anna = ask("anna"), lab = desk.ask("lab");
  CHECK(desk.place(anna) == 1);
  budgets.over.insert("anna");
  desk.admission.budgets_changed();
  CHECK(desk.place(anna) == 2);
  CHECK(desk.place(lab) == 1);
  for (SessionId session : {running, anna})
    CHECK(desk.registry.find(session)->service_class == scheduler::ServiceClass::scavenger);
  budgets.held["anna"] = "this month is used up";
  desk.admission.budgets_changed();
  desk.end(running);
  CHECK(desk.devices(lab).size() == 1);
  desk.end(lab);
  CHECK(desk.devices(anna).empty());
  CHECK(desk.registry.find(anna)->why == "this month is used up");
  const SessionId ben = ask("ben");
  CHECK(desk.devices(ben).size() == 1);  // a held session takes no place from others
  desk.end(ben);
  budgets = {};
  desk.admission.budgets_changed();
  CHECK(desk.devices(anna).size() == 1);
  CHECK(desk.registry.find(anna)->service_class == scheduler::ServiceClass::batch);
}

TEST_CASE("a waiting client learns its place at every change, and begins when its turn comes") {
  Desk desk(
      {{.name = "anna", .sessions_max = 1}, {.name = "ben", .service_class = scheduler::ServiceClass::interactive}},
      {.sessions_per_gpu_max = 1}, 1);
  SessionId running = desk.ask("ben"), first = desk.ask("anna"), second = desk.ask("anna");
  CHECK(desk.place(first) == 1);
  CHECK(desk.place(second) == 2);
  SessionId before = desk.ask("ben");
  CHECK(desk.place(before) == 1);
  CHECK(desk.place(first) == 2);
  CHECK(desk.place(second) == 3);
  CHECK(desk.registry.find(second)->place == 3);
  CHECK(desk.registry.find(second)->state == SessionState::queued);
  desk.leave(first);
  CHECK(desk.place(second) == 2);
  desk.end(running);
  CHECK(desk.devices(before) == std::vector<unsigned>{0});
  CHECK(desk.place(second) == 1);
  desk.end(before);
  CHECK(desk.devices(second) == std::vector<unsigned>{0});
}

TEST_CASE("a tenant's only program is not behind all of another tenant's, and each client learns its place") {
  Desk desk({{.name = "anna"}, {.name = "ben"}}, {.sessions_per_gpu_max = 1}, 1);
  SessionId running = desk.ask("anna");
  std::vector<SessionId> annas;
  for (int i = 0; i < 32; ++i) annas.push_back(desk.ask("anna"));
  CHECK(desk.place(annas[1]) == 2);
  SessionId ben = desk.ask("ben");
  CHECK(desk.place(ben) == 2);
  for (size_t i = 1; i < annas.size(); ++i) CHECK(desk.place(annas[i]) == i + 2);
  desk.end(running);
  CHECK(desk.devices(annas[0]).size() == 1);
  CHECK(desk.place(ben) == 1);
  desk.end(annas[0]);
  CHECK(desk.devices(ben).size() == 1);
}

TEST_CASE("the order of the queue is the same under the next broker") {
  const std::vector<TenantConfiguration> tenants{{.name = "anna"}, {.name = "ben"}, {.name = "carl"}};
  Desk desk(tenants, {.sessions_per_gpu_max = 1}, 1);
  SessionId running = desk.ask("carl");
  std::map<SessionId, const char*> waiting;
  for (const char* tenant : {"anna", "anna", "anna", "ben", "anna", "ben", "carl"}) waiting[desk.ask(tenant)] = tenant;
  waiting.erase(waiting.begin());
  desk.end(running);  // ben's first session arrived after anna's second, and is in front of it now
  Desk next(tenants, {.sessions_per_gpu_max = 1}, 1);
  for (const auto& [session, tenant] : waiting) {
    SessionRecord record = next.admission.record_of({.tenant = tenant});
    record.number = session;
    next.registry.restore(std::move(record));
    next.admission.ask_again(session, 0, std::get<AdmissionQueued>(desk.answers.at(session).back()).round);
  }
  for (const auto& [session, tenant] : waiting) CHECK(next.place(session) == desk.place(session));
}

TEST_CASE("memory that comes back lets who waits for it begin, and what its tenant can never have is refused") {
  Desk desk({{.name = "anna", .memory = {.limit_bytes = 12 * kGiB}},
             {.name = "ben", .memory = {.guaranteed_bytes = 6 * kGiB}}},
            {}, 1);
  test::FreeMemory memory(4 * kGiB);
  memory.reserved = 2 * kGiB;
  desk.admission.set_memory(memory);
  SessionId waits = desk.ask({.tenant = "anna", .memory_bytes = 8 * kGiB});
  CHECK(desk.place(waits) == 1);
  CHECK(desk.registry.find(waits)->why ==
        "8 GiB of 16 GiB are not free on 1 GPU now; 6 GiB are guaranteed to other tenants; 2 GiB are reserved by "
        "programs that run");
  memory.free = 9 * kGiB;
  desk.admission.reconsider();
  CHECK(desk.devices(waits).size() == 1);
  CHECK(desk.refused(desk.ask({.tenant = "anna", .memory_bytes = 11 * kGiB})));  // ben's guarantee leaves 10
  CHECK(desk.refused(desk.ask({.tenant = "ben", .memory_bytes = 17 * kGiB})));
}

TEST_CASE("a program that lacks nothing but memory is listed, and is told that sessions are being suspended for it") {
  Desk desk({{.name = "anna"}}, {}, 2);
  test::FreeMemory memory(4 * kGiB);
  desk.admission.set_memory(memory);
  CHECK(desk.admission.waiting_for_memory().empty());
  const SessionId waits = desk.ask({.tenant = "anna", .memory_bytes = 8 * kGiB});
  const auto listed = desk.admission.waiting_for_memory();
  REQUIRE(listed.size() == 1);
  CHECK((listed[0].session == waits && listed[0].memory_bytes == 8 * kGiB && listed[0].devices.size() == 2));
  desk.admission.set_suspends_for([&](SessionId session) { return session == waits; });
  desk.admission.reconsider();
  CHECK(desk.registry.find(waits)->why.ends_with(" now; idle sessions are being suspended for it"));
  memory.free = 8 * kGiB;
  desk.admission.reconsider();
  CHECK(desk.admission.waiting_for_memory().empty());
  CHECK(desk.devices(waits).size() == 1);
}

TEST_CASE("a tenant that asks for more memory than its own session leaves of its limit keeps the GPU from nobody") {
  Desk desk(
      {{.name = "anna", .service_class = scheduler::ServiceClass::interactive, .memory = {.limit_bytes = 12 * kGiB}},
       {.name = "ben"},
       {.name = "carl", .service_class = scheduler::ServiceClass::interactive},
       {.name = "dora", .memory = {.guaranteed_bytes = 2 * kGiB}}},
      {}, 1);
  test::FreeMemory memory(16 * kGiB);
  desk.admission.set_memory(memory);
  SessionId first = desk.ask({.tenant = "anna", .memory_bytes = 10 * kGiB});
  REQUIRE(desk.devices(first).size() == 1);
  memory.free = 4 * kGiB;
  memory.held[desk.tenants.find("anna")->id] = 10 * kGiB;
  SessionId second = desk.ask({.tenant = "anna", .memory_bytes = 10 * kGiB});
  CHECK(desk.place(second) == 1);
  for (int i = 0; i < 10; ++i) {
    for (const char* tenant : {"ben", "carl", "dora"}) {
      SessionId plain = desk.ask(tenant), reserves = desk.ask({.tenant = tenant, .memory_bytes = kGiB});
      CHECK(desk.devices(plain).size() == 1);
      CHECK(desk.devices(reserves).size() == 1);
      desk.end(plain);
      desk.end(reserves);
    }
  }
  memory.free = 14 * kGiB;
  memory.held.clear();
  desk.end(first);
  CHECK(desk.devices(second).size() == 1);
}

TEST_CASE("GPUs that are kept for a program that waits for several are lent to others when time has passed") {
  Desk desk({{.name = "anna"}, {.name = "gina"}}, {.sessions_per_gpu_max = 1}, 2);
  const auto began = Admission::Clock::now();
  SessionId first = desk.ask({.tenant = "anna", .gpus = 1});
  SessionId gang = desk.ask({.tenant = "gina", .gpus = 2});
  CHECK(desk.place(gang) == 1);
  for (unsigned i = 0; i < scheduler::kOvertakenMax; ++i) {
    SessionId other = desk.ask({.tenant = "anna", .gpus = 1});
    REQUIRE(desk.devices(other).size() == 1);
    desk.end(other);
  }
  SessionId longer = desk.ask({.tenant = "anna", .gpus = 1});
  CHECK(desk.devices(longer).size() == 1);
  desk.end(first);
  SessionId waits = desk.ask({.tenant = "anna", .gpus = 1});
  desk.admission.reconsider(began);
  CHECK(desk.place(waits) == 2);
  desk.admission.reconsider(began + std::chrono::hours(1));
  CHECK(desk.devices(waits).size() == 1);
  CHECK(desk.place(gang) == 1);
  desk.end(longer);
  desk.end(waits);
  CHECK(desk.devices(gang).size() == 2);
}

TEST_CASE("memory is reserved when a session is placed, and let go when it never begins") {
  Desk desk({{.name = "anna"}}, {}, 1);
  test::FreeMemory memory(16 * kGiB);
  desk.admission.set_memory(memory);
  SessionId first = desk.ask({.tenant = "anna", .memory_bytes = 4 * kGiB}), none = desk.ask("anna");
  CHECK(desk.devices(none).size() == 1);
  CHECK(memory.holders == std::set{first});
  memory.gone = true;  // a worker has taken it first
  SessionId second = desk.ask({.tenant = "anna", .memory_bytes = 4 * kGiB});
  CHECK(desk.place(second) == 1);
  memory.gone = false;
  desk.admission.reconsider();
  CHECK(memory.holders == std::set{first, second});
  desk.leave(second);
  desk.end(first);
  CHECK(memory.holders.empty());
}

TEST_CASE(
    "a reload reaches who waits: a higher class goes in front, a tenant that is gone is refused, and what runs goes "
    "on") {
  Desk desk({{.name = "anna"}, {.name = "ben"}, {.name = "carl"}}, {.sessions_per_gpu_max = 1}, 1);
  SessionId running = desk.ask("carl"), anna = desk.ask("anna"), ben = desk.ask("ben"), carl = desk.ask("carl");
  CHECK(desk.place(carl) == 3);
  desk.tenants.replace({{.name = "anna"}, {.name = "ben", .service_class = scheduler::ServiceClass::realtime}});
  desk.admission.reload({.sessions_per_gpu_max = 1});
  CHECK(desk.place(ben) == 1);
  CHECK(desk.registry.find(ben)->service_class == scheduler::ServiceClass::realtime);
  CHECK(desk.place(anna) == 2);
  REQUIRE(desk.refused(carl));
  CHECK(desk.refused(carl)->cause == RefusalCause::unauthorised);
  CHECK(desk.registry.find(running));
  CHECK(desk.refused(desk.ask("carl")));
  desk.admission.reload({.sessions_per_gpu_max = 2});
  CHECK(desk.devices(ben).size() == 1);
  CHECK(desk.place(anna) == 1);
  SessionId large = desk.ask({.tenant = "ben", .memory_bytes = 9 * kGiB});
  desk.tenants.replace({{.name = "anna"}, {.name = "ben", .memory = {.limit_bytes = 8 * kGiB}}});
  desk.admission.reload({.sessions_per_gpu_max = 2});
  REQUIRE(desk.refused(large));
  CHECK(desk.refused(large)->cause == RefusalCause::never_fits);
}

TEST_CASE("a server that does not know its devices has none to give") {
  TenantDirectory tenants({{.name = "anna"}});
  SessionRegistry registry;
  std::optional<RefusalCause> cause;
  Admission admission(registry, tenants, {},
                      {.placed = [](SessionId, auto) {},
                       .queued = [](SessionId, auto) {},
                       .refused = [&](SessionId, RefusalCause why, auto) { cause = why; }});
  admission.ask(registry.add(admission.record_of({.tenant = "anna"})).number, 0);
  CHECK(cause == RefusalCause::no_device);
}

TEST_CASE("queries take no GPU, and are shown as many as a program would get, the client's own if it has a session") {
  Desk desk({{.name = "anna"}}, {.sessions_per_gpu_max = 1});
  desk.ask("anna");
  SessionId second = desk.ask({.tenant = "anna", .host = "pc", .client_pid = 7});
  CHECK(desk.devices(second) == std::vector<unsigned>{1});
  CHECK(desk.devices(desk.ask({.tenant = "anna", .host = "pc", .client_pid = 7, .management = true})) ==
        std::vector<unsigned>{1});
  CHECK(desk.devices(desk.ask({.tenant = "anna", .host = "pc", .client_pid = 8, .management = true})).size() == 1);
  CHECK(desk.devices(desk.ask({.tenant = "anna", .gpus = 3, .management = true})).size() == 3);
  CHECK(desk.devices(desk.ask("anna")) == std::vector<unsigned>{2});
}

namespace {

// Credentials "A..." belong to job A with two GPUs, "B..." to job B with one, others to no job.
void give_jobs(Desk& desk) {
  desk.admission.set_job_of([](const std::string& credential) {
    if (credential.starts_with("A")) return JobOfCredential{"job A", 2};
    if (credential.starts_with("B")) return JobOfCredential{"job B", 1};
    return JobOfCredential{};
  });
}

}  // namespace

TEST_CASE("a job's sessions share the GPUs that its token is for, on whichever of its nodes they are") {
  Desk desk({{.name = "anna"}});
  give_jobs(desk);
  SessionId first = desk.ask({.tenant = "anna", .credential = "A, node 1"});
  REQUIRE(desk.devices(first).size() == 2);  // the job's number, if the program asks for none
  const auto chosen = desk.devices(first);
  const std::set<scheduler::DeviceIndex> of_job(chosen.begin(), chosen.end());
  for (int i = 0; i < 6; ++i) {
    SessionId next =
        desk.ask({.tenant = "anna", .gpus = unsigned(1 + i % 2), .credential = i % 2 ? "A, node 1" : "A, node 2"});
    for (scheduler::DeviceIndex device : desk.devices(next)) CHECK(of_job.contains(device));
  }
  SessionId other = desk.ask({.tenant = "anna", .gpus = 2, .credential = "of a person"});
  for (scheduler::DeviceIndex device : desk.devices(other)) CHECK_FALSE(of_job.contains(device));
  SessionId too_much = desk.ask({.tenant = "anna", .gpus = 3, .credential = "A, node 1"});
  REQUIRE(desk.refused(too_much));
  CHECK(desk.refused(too_much)->reason == "the job job A has 2 GPUs; 3 were asked for");
}

TEST_CASE("a job whose sessions begin with one GPU each has no more than its number of them") {
  Desk desk({{.name = "anna"}});
  give_jobs(desk);
  std::set<scheduler::DeviceIndex> used;
  for (int i = 0; i < 8; ++i)
    for (scheduler::DeviceIndex device : desk.devices(desk.ask({.tenant = "anna", .gpus = 1, .credential = "A"})))
      used.insert(device);
  CHECK(used.size() == 2);
}

TEST_CASE("a job's queries show its own GPUs, and a job that begins anew may have others") {
  Desk desk({{.name = "anna"}});
  give_jobs(desk);
  SessionId person = desk.ask({.tenant = "anna", .gpus = 1});
  SessionId job = desk.ask({.tenant = "anna", .credential = "B"});
  CHECK(desk.devices(desk.ask({.tenant = "anna", .credential = "B", .management = true})) == desk.devices(job));
  auto before = desk.devices(job);
  desk.end(job);
  desk.end(person);
  desk.ask({.tenant = "anna", .gpus = 1});
  SessionId second = desk.ask({.tenant = "anna", .gpus = 1});
  CHECK(desk.devices(second) == before);
  CHECK(desk.devices(desk.ask({.tenant = "anna", .credential = "B"})) != before);
}

TEST_CASE("sessions of a job that wait begin on the same GPUs") {
  Desk desk({{.name = "anna"}}, {.sessions_per_gpu_max = 4});
  give_jobs(desk);
  std::vector<SessionId> full;
  for (int i = 0; i < 16; ++i) full.push_back(desk.ask({.tenant = "anna", .gpus = 1}));
  SessionId one = desk.ask({.tenant = "anna", .credential = "B"}),
            other = desk.ask({.tenant = "anna", .credential = "B"});
  CHECK(desk.place(one) == 1);
  CHECK(desk.place(other) == 2);
  for (SessionId session : full) desk.end(session);
  REQUIRE(desk.devices(one).size() == 1);
  CHECK(desk.devices(one) == desk.devices(other));
}

TEST_CASE("sessions that an earlier broker began keep later ones of their job on their GPUs") {
  Desk desk({{.name = "anna"}});
  give_jobs(desk);
  SessionRecord adopted{.number = SessionId(77),
                        .tenant = "anna",
                        .tenant_id = desk.tenants.find("anna")->id,
                        .devices = {3},
                        .credential = "B",
                        .state = SessionState::running};
  desk.registry.restore(adopted);
  desk.admission.adopted(adopted.number);
  CHECK(desk.devices(desk.ask({.tenant = "anna", .credential = "B"})) == std::vector<scheduler::DeviceIndex>{3});
}

TEST_CASE(
    "who has waited under an earlier broker keeps its place, and nobody behind it gets it before its client is back") {
  Desk desk({{.name = "anna"}, {.name = "ben", .service_class = scheduler::ServiceClass::interactive}},
            {.sessions_per_gpu_max = 1}, 1);
  auto from_before = [&](uint64_t number, const char* tenant) {
    SessionRecord record = desk.admission.record_of({.tenant = tenant});
    record.number = SessionId(number);
    record.arrived = std::chrono::system_clock::now();
    desk.registry.restore(std::move(record));
    desk.admission.ask_again(SessionId(number), 0, 0);
    return SessionId(number);
  };
  SessionId first = from_before(7, "anna"), second = from_before(8, "anna");
  // A client that returns is told its place.
  CHECK(desk.registry.find(first)->place == 1);
  CHECK(desk.registry.find(second)->place == 2);
  CHECK(desk.registry.find(second)->waiting == 2);
  // The GPU is free, and kept for the first session, whose client is away.
  desk.admission.client_is_back(second);
  SessionId late = desk.ask("anna");
  desk.admission.reconsider();
  CHECK(desk.placed.empty());
  CHECK(desk.place(second) == 2);
  CHECK(desk.place(late) == 3);
  CHECK(desk.place(desk.ask("ben")) == 0);  // a higher class
  CHECK(desk.placed.size() == 1);
  desk.end(desk.placed[0]);
  CHECK(desk.placed.size() == 1);
  desk.admission.client_is_back(first);
  CHECK(desk.placed.back() == first);
  desk.end(first);
  CHECK(desk.placed.back() == second);
  // A session whose client does not return does not block others any more.
  SessionId gone = from_before(20, "anna");
  desk.leave(late);
  desk.leave(gone);
  SessionId next = desk.ask("anna");
  desk.end(second);
  CHECK(desk.placed.back() == next);
}

TEST_CASE("a wait under an earlier broker counts under the next") {
  Desk desk({{.name = "anna", .queue_time_max_ms = 60'000}}, {.sessions_per_gpu_max = 1}, 1);
  desk.ask("anna");
  SessionRecord record = desk.admission.record_of({.tenant = "anna"});
  record.number = SessionId(7);
  record.arrived = std::chrono::system_clock::now() - std::chrono::seconds(50);
  desk.registry.restore(std::move(record));
  desk.admission.ask_again(SessionId(7), 0, 0);
  desk.admission.refuse_overdue(Admission::Clock::now() + std::chrono::seconds(5));
  CHECK_FALSE(desk.refused(SessionId(7)));
  desk.admission.refuse_overdue(Admission::Clock::now() + std::chrono::seconds(15));
  CHECK(desk.refused(SessionId(7)));
}

TEST_CASE("a query gives the answer that the program would get when it comes, and changes nothing") {
  Desk desk({{.name = "anna"}, {.name = "ben", .queued_max = 1}}, {.sessions_per_gpu_max = 1}, 1);
  auto preview = [&](LoginRequest request) { return desk.admission.preview(std::move(request)); };
  CHECK(std::holds_alternative<AdmissionGranted>(preview({.tenant = "anna"}).answer));
  CHECK(preview({.tenant = "anna"}).devices == std::vector<scheduler::DeviceIndex>{0});
  CHECK(desk.registry.all().empty());
  CHECK(desk.answers.empty());
  desk.ask("anna");
  AdmissionPreview waits = preview({.tenant = "ben"});
  REQUIRE(std::holds_alternative<AdmissionQueued>(waits.answer));
  CHECK(std::get<AdmissionQueued>(waits.answer).place == 1);
  SessionId ben = desk.ask("ben");
  CHECK(desk.place(ben) == 1);
  CHECK(desk.answers[ben].size() == 1);
  CHECK(std::get<AdmissionQueued>(waits.answer).why == desk.registry.find(ben)->why);
  // The tenant's queue is full.
  AdmissionPreview full = preview({.tenant = "ben"});
  REQUIRE(std::holds_alternative<AdmissionRefused>(full.answer));
  CHECK(std::get<AdmissionRefused>(full.answer).reason == desk.refused(desk.ask("ben"))->reason);
  AdmissionPreview never = preview({.tenant = "anna", .gpus = 2});
  REQUIRE(std::holds_alternative<AdmissionRefused>(never.answer));
  CHECK(std::get<AdmissionRefused>(never.answer).cause == RefusalCause::never_fits);
  CHECK(std::get<AdmissionRefused>(preview({.tenant = "carl"}).answer).cause == RefusalCause::unauthorised);
}

TEST_CASE("a user whose hard budget is used up would wait for the next month, and another user would start") {
  Desk desk({{.name = "course"}}, {}, 2);
  SaidBudgets budgets;
  budgets.held["anna"] = "this month is used up";
  desk.admission.set_budgets(budgets);
  auto preview = [&](const char* user) { return desk.admission.preview({.tenant = "course", .user = user}).answer; };
  const AdmissionAnswer waits = preview("anna");
  REQUIRE(std::holds_alternative<AdmissionQueued>(waits));
  CHECK(std::get<AdmissionQueued>(waits).why == "this month is used up");
  CHECK(std::holds_alternative<AdmissionGranted>(preview("ben")));
  const SessionId anna = desk.ask(LoginRequest{.tenant = "course", .user = "anna"});
  CHECK(desk.registry.find(anna)->why == "this month is used up");
}

TEST_CASE("a program that names a type of GPU gets only such ones, and waits for those") {
  Desk desk({{.name = "anna"}}, {.sessions_per_gpu_max = 1}, 0);
  std::vector<ServerDevice> devices = some_devices(3);
  for (size_t i = 0; i < devices.size(); ++i) devices[i].name = i == 1 ? "NVIDIA H200" : "NVIDIA L4";
  desk.admission.devices_known(devices);
  SessionId first = desk.ask({.tenant = "anna", .gpus = 1, .gpu_type = "h200"});
  CHECK(desk.devices(first) == std::vector<scheduler::DeviceIndex>{1});
  SessionId second = desk.ask({.tenant = "anna", .gpus = 1, .gpu_type = "H200"});
  CHECK(desk.place(second) == 1);
  CHECK(desk.devices(desk.ask({.tenant = "anna", .gpus = 1})) == std::vector<scheduler::DeviceIndex>{0});
  desk.end(first);
  CHECK(desk.devices(second) == std::vector<scheduler::DeviceIndex>{1});
  SessionId stranger = desk.ask({.tenant = "anna", .gpus = 1, .gpu_type = "b300"});
  REQUIRE(desk.refused(stranger));
  CHECK(desk.refused(stranger)->reason == "this server has no GPU of the type b300 for the tenant");
  SessionId greedy = desk.ask({.tenant = "anna", .gpus = 2, .gpu_type = "h200"});
  REQUIRE(desk.refused(greedy));
  CHECK(desk.refused(greedy)->cause == RefusalCause::never_fits);
  CHECK(desk.admission.preview({.tenant = "anna", .gpus = 1, .gpu_type = "l4"}).devices ==
        std::vector<scheduler::DeviceIndex>{0, 2});
}
