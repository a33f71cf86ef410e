// Which sessions are suspended for whom: each rule by itself, against every set of victims that there could be, and in
// a card's life from a seed, in which sessions work, idle, are suspended and come back.
#include <algorithm>
#include <bit>
#include <map>
#include <optional>
#include <random>
#include <set>
#include <vector>

#include <doctest/doctest.h>

#include "scheduler/suspension.hpp"

namespace gpuwire::scheduler {
namespace {

using namespace std::chrono_literals;

constexpr uint64_t kGB = 1'000'000'000;
constexpr unsigned kViews = 20'000, kLives = 400, kLifeSteps = 300;

// As the driver's checkpoint brings memory back.
Duration cost_of(uint64_t bytes) { return 200ms + Duration(int64_t(bytes / 8)); }

SuspendableSession idle_session(unsigned number, unsigned tenant, uint64_t bytes) {
  return {.session = SessionId(number),
          .tenant = TenantId(tenant),
          .when = Suspend::pressure,
          .bytes = bytes,
          .host_bytes = bytes,
          .idle = 1h,
          .suspend_after = 10min,
          .return_cost = cost_of(bytes),
          .on_card = {}};
}

struct Setting {
  std::vector<SuspendableSession> sessions;
  std::map<TenantId, SuspensionTenant> tenants;
  uint64_t host_room_bytes = 1000 * kGB;

  // Tenants hold what their sessions do, are guaranteed nothing, and may have all of the host.
  void fill_tenants() {
    for (const SuspendableSession& session : sessions) {
      SuspensionTenant& tenant = tenants[session.tenant];
      tenant.held_bytes += session.bytes;
      tenant.host_room_bytes = 1000 * kGB;
    }
  }
  SuspensionView view() const { return {sessions, tenants, host_room_bytes}; }
};

SuspensionRequest asks(uint64_t bytes, ServiceClass service_class = ServiceClass::batch) {
  return {.session = {}, .tenant = TenantId(99), .service_class = service_class, .bytes = bytes};
}

Setting setting_of(std::vector<SuspendableSession> sessions) {
  Setting setting{.sessions = std::move(sessions), .tenants = {}};
  setting.fill_tenants();
  return setting;
}

using Victims = std::vector<SessionId>;
Victims victims(std::initializer_list<unsigned> numbers) {
  Victims out;
  for (unsigned number : numbers) out.push_back(SessionId(number));
  return out;
}

}  // namespace

TEST_CASE("an idle session gives its memory to one that needs it") {
  Setting setting = setting_of({idle_session(1, 1, 60 * kGB)});
  CHECK(choose_victims(asks(40 * kGB), setting.view()) == victims({1}));
}

TEST_CASE("nobody is suspended where all together do not give enough, or nothing is lacking") {
  Setting setting = setting_of({idle_session(1, 1, 60 * kGB), idle_session(2, 2, 20 * kGB)});
  CHECK(choose_victims(asks(81 * kGB), setting.view()).empty());
  CHECK(choose_victims(asks(0), setting.view()).empty());
}

TEST_CASE("a session of a higher class than the asker's stays") {
  Setting setting = setting_of({idle_session(1, 1, 60 * kGB)});
  setting.sessions[0].service_class = ServiceClass::interactive;
  CHECK(choose_victims(asks(kGB), setting.view()).empty());
  CHECK(why_no_victim(setting.sessions[0], asks(kGB), setting.view()) == NoVictim::higher_class);
  CHECK(choose_victims(asks(kGB, ServiceClass::interactive), setting.view()) == victims({1}));
  CHECK(choose_victims(asks(kGB, ServiceClass::realtime), setting.view()) == victims({1}));
}

TEST_CASE("a tenant's guarantee is taken only for one that is within its own guarantee") {
  Setting setting = setting_of({idle_session(1, 1, 60 * kGB)});
  setting.tenants[TenantId(1)].guaranteed_bytes = 60 * kGB;
  CHECK(why_no_victim(setting.sessions[0], asks(kGB), setting.view()) == NoVictim::within_guarantee);
  setting.tenants[TenantId(99)] = {.held_bytes = 5 * kGB, .guaranteed_bytes = 10 * kGB};
  CHECK(choose_victims(asks(5 * kGB), setting.view()) == victims({1}));
  CHECK(choose_victims(asks(6 * kGB), setting.view()).empty());
}

TEST_CASE("a tenant that holds more than its guarantee gives up no more sessions than that takes") {
  Setting setting = setting_of({idle_session(1, 1, 30 * kGB), idle_session(2, 1, 30 * kGB)});
  setting.tenants[TenantId(1)].guaranteed_bytes = 30 * kGB;
  CHECK(choose_victims(asks(30 * kGB), setting.view()).size() == 1);
  CHECK(choose_victims(asks(31 * kGB), setting.view()).empty());
}

TEST_CASE("a victim counts only with what its tenant holds beyond its guarantee") {
  Setting setting = setting_of({idle_session(1, 1, 40 * kGB), idle_session(2, 2, 20 * kGB)});
  setting.tenants[TenantId(1)].guaranteed_bytes = 30 * kGB;
  CHECK(choose_victims(asks(10 * kGB), setting.view()) == victims({2}));
  CHECK(choose_victims(asks(30 * kGB), setting.view()).size() == 2);
  CHECK(choose_victims(asks(31 * kGB), setting.view()).empty());
  // Within its own guarantee the asker gets all of it.
  setting.tenants[TenantId(99)] = {.held_bytes = 0, .guaranteed_bytes = 60 * kGB};
  CHECK(choose_victims(asks(40 * kGB), setting.view()) == victims({1}));
}

TEST_CASE("a tenant's own idle session gives to the tenant's next one whatever is guaranteed") {
  Setting setting = setting_of({idle_session(1, 99, 30 * kGB)});
  setting.tenants[TenantId(99)].guaranteed_bytes = 30 * kGB;
  CHECK(choose_victims(asks(20 * kGB), setting.view()) == victims({1}));
}

TEST_CASE("one victim is chosen where one gives enough, although smaller ones are cheaper") {
  Setting setting =
      setting_of({idle_session(1, 1, 20 * kGB), idle_session(2, 2, 20 * kGB), idle_session(3, 3, 70 * kGB)});
  CHECK(choose_victims(asks(40 * kGB), setting.view()) == victims({3}));
}

TEST_CASE("among those that give enough the lowest class goes first") {
  Setting setting = setting_of({idle_session(1, 1, 20 * kGB), idle_session(2, 2, 60 * kGB)});
  setting.sessions[1].service_class = ServiceClass::scavenger;
  CHECK(choose_victims(asks(10 * kGB), setting.view()) == victims({2}));
}

TEST_CASE("within a class a session goes that has been idle for longer, or that returns sooner") {
  Setting setting = setting_of({idle_session(1, 1, 20 * kGB), idle_session(2, 2, 20 * kGB)});
  setting.sessions[1].idle = 5h;
  CHECK(choose_victims(asks(10 * kGB), setting.view()) == victims({2}));
  setting.sessions[1].idle = setting.sessions[0].idle;
  setting.sessions[0].return_cost = 100ms;
  CHECK(choose_victims(asks(10 * kGB), setting.view()) == victims({1}));
}

TEST_CASE("a session that works, idles for a moment, or may not be suspended stays") {
  Setting setting = setting_of({idle_session(1, 1, 20 * kGB)});
  SuspendableSession& session = setting.sessions[0];
  session.idle = 9min;
  CHECK(why_no_victim(session, asks(kGB), setting.view()) == NoVictim::idle_too_short);
  session.idle = {};
  CHECK(why_no_victim(session, asks(kGB), setting.view()) == NoVictim::busy);
  session.idle = 1h;
  session.when = Suspend::never;
  CHECK(why_no_victim(session, asks(kGB), setting.view()) == NoVictim::not_allowed);
  CHECK(choose_victims(asks(kGB), setting.view()).empty());
}

TEST_CASE("a session that came back keeps the card for ten times what its return took") {
  Setting setting = setting_of({idle_session(1, 1, 20 * kGB)});
  SuspendableSession& session = setting.sessions[0];
  session.last_return = 2min;
  session.on_card = 20min - 1ns;
  CHECK(why_no_victim(session, asks(kGB), setting.view()) == NoVictim::just_returned);
  session.on_card = 20min;
  CHECK(why_no_victim(session, asks(kGB), setting.view()) == NoVictim::none);
}

TEST_CASE("contents that the host has no room for stay on the card") {
  Setting setting = setting_of({idle_session(1, 1, 20 * kGB)});
  setting.host_room_bytes = 20 * kGB - 1;
  CHECK(why_no_victim(setting.sessions[0], asks(kGB), setting.view()) == NoVictim::host_memory_full);
  setting.host_room_bytes = 20 * kGB;
  CHECK(choose_victims(asks(kGB), setting.view()) == victims({1}));
  setting.tenants[TenantId(1)].host_room_bytes = 19 * kGB;
  CHECK(choose_victims(asks(kGB), setting.view()).empty());
}

TEST_CASE("without a request only sessions go whose tenants want that, and only when they have idled for long enough") {
  const SuspensionTenant tenant{.held_bytes = 20 * kGB, .host_room_bytes = 100 * kGB};
  SuspendableSession session = idle_session(1, 1, 20 * kGB);
  CHECK(why_not_by_idleness(session, tenant, 100 * kGB) == NoVictim::not_allowed);
  session.when = Suspend::idle;
  CHECK(why_not_by_idleness(session, tenant, 100 * kGB) == NoVictim::none);
  CHECK(why_not_by_idleness(session, tenant, kGB) == NoVictim::host_memory_full);
  session.idle = 1min;
  CHECK(why_not_by_idleness(session, tenant, 100 * kGB) == NoVictim::idle_too_short);
}

namespace {

// The rules once more, for a whole set at a time and without a word of the code above.
class Judge {
 public:
  Judge(const SuspensionRequest& request, const Setting& setting) : request_(request), setting_(setting) {}

  bool may_be_victim(const SuspendableSession& session) const {
    const bool rested = !session.on_card || session.last_return * int(kKeptPerReturn) <= *session.on_card;
    return session.when != Suspend::never && session.bytes > 0 && session.idle && rested &&
           *session.idle >= session.suspend_after && session.service_class >= request_.service_class &&
           request_.session != session.session;
  }
  // In some order each is taken from a tenant that has more than its guarantee, and the host has room for all.
  bool allowed(const std::vector<const SuspendableSession*>& set) const {
    uint64_t host = 0;
    std::map<TenantId, uint64_t> host_of, largest, given;
    for (const SuspendableSession* session : set) {
      if (!may_be_victim(*session)) return false;
      host += session->host_bytes;
      host_of[session->tenant] += session->host_bytes;
      given[session->tenant] += session->bytes;
      largest[session->tenant] = std::max(largest[session->tenant], session->bytes);
    }
    for (const auto& [tenant, bytes] : host_of)
      if (bytes > tenant_of(tenant).host_room_bytes) return false;
    if (host > setting_.host_room_bytes) return false;
    if (asker_is_within_guarantee()) return true;
    // The largest goes last: what the others have left is more than the guarantee.
    for (const auto& [tenant, bytes] : given) {
      const SuspensionTenant of = tenant_of(tenant);
      if (tenant != request_.tenant && of.held_bytes - (bytes - largest[tenant]) <= of.guaranteed_bytes) return false;
    }
    return true;
  }

  // Returns the bytes that the asker gets by the suspension of all of the set.
  uint64_t given(const std::vector<const SuspendableSession*>& set) const {
    std::map<TenantId, uint64_t> of;
    for (const SuspendableSession* session : set) of[session->tenant] += session->bytes;
    uint64_t sum = 0;
    for (const auto& [tenant, bytes] : of) {
      const SuspensionTenant has = tenant_of(tenant);
      const bool all = tenant == request_.tenant || asker_is_within_guarantee();
      const uint64_t beyond = has.held_bytes > has.guaranteed_bytes ? has.held_bytes - has.guaranteed_bytes : 0;
      sum += all ? bytes : std::min(bytes, beyond);
    }
    return sum;
  }

 private:
  SuspensionTenant tenant_of(TenantId tenant) const {
    const auto found = setting_.tenants.find(tenant);
    return found == setting_.tenants.end() ? SuspensionTenant{} : found->second;
  }
  bool asker_is_within_guarantee() const {
    const SuspensionTenant of = tenant_of(request_.tenant);
    return of.held_bytes + request_.bytes <= of.guaranteed_bytes;
  }

  const SuspensionRequest& request_;
  const Setting& setting_;
};

class Dice {
 public:
  explicit Dice(uint64_t seed) : random_(seed) {}
  uint64_t upto(uint64_t most) { return std::uniform_int_distribution<uint64_t>(0, most)(random_); }
  bool one_in(unsigned n) { return upto(n - 1) == 0; }

 private:
  std::mt19937_64 random_;
};

Setting random_setting(Dice& dice) {
  Setting setting;
  const uint64_t count = dice.upto(9);
  for (unsigned i = 1; i <= count; ++i) {
    SuspendableSession session = idle_session(i, unsigned(1 + dice.upto(3)), dice.upto(12) * kGB);
    session.service_class = ServiceClass(dice.upto(3));
    session.when = Suspend(dice.upto(2));
    session.host_bytes = session.bytes + dice.upto(1) * kGB;
    session.idle = std::chrono::minutes(dice.upto(40));
    if (dice.one_in(6)) session.idle.reset();
    if (dice.one_in(2)) session.on_card = std::chrono::minutes(dice.upto(30));
    session.last_return = std::chrono::seconds(dice.upto(120));
    setting.sessions.push_back(session);
  }
  setting.fill_tenants();
  for (auto& [id, tenant] : setting.tenants) {
    tenant.guaranteed_bytes = dice.one_in(2) ? 0 : dice.upto(30) * kGB;
    if (dice.one_in(3)) tenant.host_room_bytes = dice.upto(30) * kGB;
  }
  setting.host_room_bytes = dice.one_in(3) ? dice.upto(40) * kGB : 1000 * kGB;
  return setting;
}

SuspensionRequest random_request(Dice& dice) {
  SuspensionRequest request = asks(dice.upto(40) * kGB, ServiceClass(dice.upto(3)));
  request.tenant = TenantId(dice.upto(4));
  if (dice.one_in(3)) request.session = SessionId(1 + dice.upto(8));
  return request;
}

void check_choice(const SuspensionRequest& request, const Setting& setting) {
  const Judge judge(request, setting);
  const Victims chosen = choose_victims(request, setting.view());
  std::vector<const SuspendableSession*> set;
  for (SessionId id : chosen)
    for (const SuspendableSession& session : setting.sessions)
      if (session.session == id) set.push_back(&session);
  REQUIRE(set.size() == std::set<SessionId>(chosen.begin(), chosen.end()).size());
  if (!set.empty()) {
    CHECK(judge.allowed(set));
    CHECK(judge.given(set) >= request.bytes);
    for (const SuspendableSession* session : set) {
      auto others = set;
      std::erase(others, session);
      CHECK(judge.given(others) < request.bytes);
    }
  }
  // Whether one alone would do decides: then one is chosen, and no more.
  const bool one_gives_enough = std::ranges::any_of(setting.sessions, [&](const SuspendableSession& session) {
    return request.bytes > 0 && judge.given({&session}) >= request.bytes && judge.allowed({&session});
  });
  CHECK((set.size() == 1) == one_gives_enough);
}

}  // namespace

TEST_CASE("every choice keeps every rule and suspends nobody in vain, for any request and any sessions") {
  for (uint64_t seed = 1; seed <= kViews; ++seed) {
    CAPTURE(seed);
    Dice dice(seed);
    const Setting setting = random_setting(dice);
    check_choice(random_request(dice), setting);
  }
}

namespace {

// A card of 100 GB whose sessions work and idle, and give way and come back by the policy's choice.
class Life {
 public:
  explicit Life(uint64_t seed) : dice_(seed) {
    const uint64_t sessions = 2 + dice_.upto(6);
    for (unsigned i = 1; i <= sessions; ++i)
      sessions_.push_back({.id = SessionId(i),
                           .tenant = TenantId(1 + dice_.upto(2)),
                           .service_class = ServiceClass(1 + dice_.upto(2)),
                           .bytes = (5 + dice_.upto(55)) * kGB});
  }

  void run() {
    for (unsigned step = 0; step < kLifeSteps; ++step) {
      now_ += std::chrono::seconds(1 + dice_.upto(300));
      One& one = sessions_[dice_.upto(sessions_.size() - 1)];
      if (one.works) {
        one.works = false;
        one.idle_since = now_;
      } else {
        call(one);
      }
      CHECK(on_card_bytes() <= kCard);
    }
  }
  unsigned suspensions() const { return suspensions_; }
  unsigned returns() const { return returns_; }

 private:
  static constexpr uint64_t kCard = 100 * kGB;
  struct One {
    SessionId id{};
    TenantId tenant{};
    ServiceClass service_class = ServiceClass::batch;
    uint64_t bytes = 0;
    bool on_card = false, works = false, was_suspended = false;
    Time idle_since{}, returned{};
    Duration last_return{};
  };

  uint64_t on_card_bytes() const {
    uint64_t bytes = 0;
    for (const One& one : sessions_) bytes += one.on_card ? one.bytes : 0;
    return bytes;
  }

  // It begins or goes on; what it lacks is asked for. Where nobody gives way it stays as it is.
  void call(One& one) {
    const uint64_t free = kCard - on_card_bytes();
    if (!one.on_card && one.bytes > free && !make_room(one, one.bytes - free)) return;
    if (!one.on_card) {
      one.on_card = true;
      one.returned = now_;
      one.last_return = one.was_suspended ? cost_of(one.bytes) : Duration{};
      returns_ += one.was_suspended;
    }
    one.works = true;
  }

  bool make_room(const One& asker, uint64_t bytes) {
    Setting setting;
    for (const One& one : sessions_) {
      if (!one.on_card) continue;
      SuspendableSession session = idle_session(unsigned(one.id), unsigned(one.tenant), one.bytes);
      session.service_class = one.service_class;
      session.idle.reset();
      if (!one.works) session.idle = now_ - one.idle_since;
      if (one.was_suspended) session.on_card = now_ - one.returned;
      session.last_return = one.last_return;
      session.suspend_after = 30s;
      setting.sessions.push_back(session);
    }
    setting.fill_tenants();
    const SuspensionRequest request{
        .session = asker.id, .tenant = asker.tenant, .service_class = asker.service_class, .bytes = bytes};
    check_choice(request, setting);
    const Victims chosen = choose_victims(request, setting.view());
    for (SessionId id : chosen) suspend(asker, *std::ranges::find(sessions_, id, &One::id));
    return !chosen.empty();
  }

  void suspend(const One& asker, One& victim) {
    CHECK(!victim.works);
    CHECK(victim.service_class >= asker.service_class);
    CHECK(victim.last_return * int(kKeptPerReturn) <= now_ - victim.returned);
    victim.on_card = false;
    victim.was_suspended = true;
    ++suspensions_;
  }

  Dice dice_;
  std::vector<One> sessions_;
  Time now_{};
  unsigned suspensions_ = 0, returns_ = 0;
};

}  // namespace

TEST_CASE("sessions that share a card in turns never play ping-pong with it, and those that gave way come back") {
  unsigned suspensions = 0, returns = 0;
  for (uint64_t seed = 1; seed <= kLives; ++seed) {
    CAPTURE(seed);
    Life life(seed);
    life.run();
    suspensions += life.suspensions();
    returns += life.returns();
  }
  MESSAGE("seeds 1 to " << kLives << ": " << suspensions << " suspensions, " << returns << " returns");
  CHECK(suspensions > kLives);
  CHECK(returns > kLives);
}

}  // namespace gpuwire::scheduler
