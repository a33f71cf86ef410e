// Memory reserved for a session is not given to others, is never refused to the session, and is released at its end.
#include <algorithm>
#include <memory>
#include <random>

#include <doctest/doctest.h>

#include "test/server/ledger/broker/fixture.hpp"

namespace gpuwire::server {
namespace {

using namespace gpuwire::test;

TEST_CASE("what is reserved for a session is taken neither by its own tenant's others nor by other tenants") {
  Fixture fixture({tenant("a", 0, 800 * kMiB), tenant("b", 0, 0)});
  auto beside = fixture.begin("a"), stranger = fixture.begin("b");
  REQUIRE(beside->ledger->reserve(0, 100 * kMiB));
  auto owner = fixture.begin("a", {0}, 500 * kMiB);
  CHECK(fixture.ledger.reserved_bytes(0) == 500 * kMiB);
  CHECK(fixture.ledger.reserved_bytes(1) == 0);
  const auto of_tenant = owner->record.tenant_id;
  CHECK(fixture.ledger.held_bytes(owner->record.number, of_tenant, 0) == 500 * kMiB);
  CHECK(fixture.ledger.held_bytes(beside->record.number, of_tenant, 0) == 100 * kMiB);
  CHECK(fixture.ledger.held_bytes(of_tenant, 0) == 600 * kMiB);
  CHECK(fixture.ledger.held_bytes(stranger->record.tenant_id, 0) == 0);
  CHECK(beside->ledger->available(0) == 200 * kMiB);
  CHECK(stranger->ledger->available(0) == 400 * kMiB);
  CHECK_FALSE(beside->ledger->reserve(0, 201 * kMiB));
  CHECK_FALSE(stranger->ledger->reserve(0, 401 * kMiB));
  CHECK(stranger->ledger->reserve(0, 400 * kMiB));
  CHECK_FALSE(beside->ledger->reserve(0, 1));  // the GPU is full, though its tenant's limit is not reached
  CHECK(beside->ledger->available(0) == 0);
  CHECK(owner->ledger->available(0) == 500 * kMiB);
  unsigned asked = owner->asked;
  CHECK(owner->ledger->reserve(0, 500 * kMiB));
  CHECK(owner->asked == asked);
  CHECK_FALSE(owner->ledger->reserve(0, 1));
}

TEST_CASE(
    "a reservation beyond the limit, beyond others' guarantees or of what is used is not made, and leaves nothing") {
  Fixture fixture({tenant("a", 0, 600 * kMiB), tenant("b", 300 * kMiB, 0)});
  auto user = fixture.begin("b");
  auto reserve = [&](uint64_t number, std::vector<uint32_t> devices, uint64_t bytes) {
    return fixture.ledger.reserve(SessionId(number), fixture.tenants.find("a")->id, {}, devices, bytes);
  };
  CHECK_FALSE(reserve(90, {0}, 601 * kMiB));
  CHECK(reserve(91, {0}, 600 * kMiB));
  CHECK_FALSE(reserve(92, {0}, 1));
  fixture.ledger.release(SessionId(91));
  fixture.ledger.release(SessionId(91));
  REQUIRE(user->ledger->reserve(0, 500 * kMiB));
  CHECK_FALSE(reserve(93, {0, 1}, 501 * kMiB));  // there is room on the second GPU only
  CHECK(fixture.ledger.reserved_bytes(0) == 0);
  CHECK(fixture.ledger.reserved_bytes(1) == 0);
  CHECK(fixture.free_bytes("a") == 500 * kMiB);
  CHECK(fixture.free_bytes("a", 1) == 600 * kMiB);
  CHECK(reserve(94, {0, 1}, 500 * kMiB));
  CHECK_FALSE(user->ledger->reserve(0, 1));
}

TEST_CASE("a reservation is held to the end of its session, and its tenant's guarantee is as large as before") {
  Fixture fixture({tenant("a", 400 * kMiB, 0), tenant("b", 0, 0)});
  auto owner = fixture.begin("a", {0}, 700 * kMiB), other = fixture.begin("b");
  CHECK(fixture.free_bytes("b") == 300 * kMiB);
  REQUIRE(owner->ledger->reserve(0, 650 * kMiB));
  owner->ledger->give_back(0, 650 * kMiB);
  CHECK_FALSE(other->ledger->reserve(0, 301 * kMiB));
  fixture.ledger.ended(owner->record);
  CHECK(fixture.ledger.reserved_bytes(0) == 0);
  CHECK(fixture.control.reconsidered == 1);
  CHECK(other->ledger->reserve(0, 600 * kMiB));
  CHECK_FALSE(other->ledger->reserve(0, 1));  // the rest is a's guarantee
}

TEST_CASE("a guarantee that is given while its memory is reserved by another waits for that session's end") {
  Fixture fixture({tenant("a", 0, 0), tenant("b", 0, 0)});
  auto owner = fixture.begin("a", {0}, 700 * kMiB), other = fixture.begin("b");
  fixture.tenants.replace({tenant("a", 0, 200 * kMiB), tenant("b", 600 * kMiB, 0)});
  fixture.ledger.tenants_changed(fixture.tenants);
  CHECK(other->ledger->reserve(0, 300 * kMiB));
  CHECK_FALSE(other->ledger->reserve(0, 1));
  CHECK(owner->ledger->reserve(0, 700 * kMiB));
  CHECK_FALSE(owner->ledger->reserve(0, 1));
  fixture.ledger.ended(owner->record);
  CHECK(other->ledger->reserve(0, 300 * kMiB));
}

TEST_CASE("a worker that lies about reservations takes nothing that is another tenant's") {
  Fixture fixture({tenant("a", 0, 400 * kMiB), tenant("b", 0, 0)});
  auto liar = fixture.begin("a"), owner = fixture.begin("b", {0}, 500 * kMiB);
  TenantPage& page = liar->page();
  for (auto& word : page.column[0].reserved) word = UINT64_MAX;
  page.slots = UINT32_MAX;
  CHECK(fixture.ledger.reserved_bytes(0) == 500 * kMiB);
  CHECK(liar->ask(0, 400 * kMiB));
  CHECK_FALSE(liar->ask(0, 401 * kMiB));
  CHECK(owner->ledger->available(0) == 600 * kMiB);
  CHECK(owner->ledger->reserve(0, 500 * kMiB));
  // The worker erases its tenant's reservation in the page; the broker keeps its own record.
  auto victim = fixture.begin("a", {0}, 300 * kMiB);
  for (auto& word : page.column[0].reserved) word = 0;
  page.slots = 0;
  CHECK_FALSE(liar->ask(0, 101 * kMiB));
  CHECK(fixture.free_bytes("b") == 200 * kMiB);
  CHECK(victim->ledger->reserve(0, 300 * kMiB));
}

TEST_CASE("what others take and let go of without a word is told again after a while") {
  Fixture fixture({tenant("a", 0, 0), tenant("b", 0, 0), tenant("c", 0, 0)});
  auto owner = fixture.begin("a", {0}, 300 * kMiB), lent = fixture.begin("b"), asks = fixture.begin("c");
  REQUIRE(lent->ledger->reserve(0, 400 * kMiB));
  lent->ledger->give_back(0, 400 * kMiB);
  fixture.io.run_one();
  CHECK(asks->ledger->available(0) == 700 * kMiB);
  unsigned asked = lent->asked;
  REQUIRE(lent->ledger->reserve(0, 400 * kMiB));
  REQUIRE(lent->asked == asked);
  fixture.io.run_one();
  CHECK(asks->ledger->available(0) == 300 * kMiB);
  for (Worker* one : {owner.get(), lent.get(), asks.get()}) fixture.ledger.ended(one->record);
  fixture.io.run();  // the timer ends with the last reservation
}

TEST_CASE("a reservation goes on under the next broker, whatever stands in the page and in its configuration") {
  CachedFixture before({tenant("a", 0, 0), tenant("b", 0, 0)});
  auto owner = before.begin("a", 600 * kMiB), other = before.begin("b");
  REQUIRE(owner->ledger->reserve(0, 50 * kMiB));
  REQUIRE(other->ledger->reserve(0, 100 * kMiB));
  for (auto& word : owner->page().column[0].reserved) word = 0;
  NextLedger next(before.keeper, {tenant("a", 0, 300 * kMiB), tenant("b", 700 * kMiB, 0)});
  REQUIRE(next.adopt(before.ledger, *owner));
  REQUIRE(next.adopt(before.ledger, *other));
  next.ledger.all_adopted();
  CHECK(next.ledger.reserved_bytes(0) == 600 * kMiB);
  CHECK(owner->page().column[0].reserved[owner->spec.ledger_slot] == 600 * kMiB);
  CHECK(next.free_bytes("a") == 0);
  CHECK(next.free_bytes("b") == 300 * kMiB);
  CHECK(owner->ledger->reserve(0, 550 * kMiB));
  next.ledger.ended(owner->record);
  CHECK(next.free_bytes("b") == 900 * kMiB);
  next.ledger.ended(other->record);
  CHECK(before.keeper.entries.empty());
}

TEST_CASE("a session that reserves and then has no worker gives everything back") {
  CachedFixture fixture({tenant("a", 0, 0)});
  std::vector<uint32_t> devices{0, 1};
  REQUIRE(fixture.ledger.reserve(SessionId(5), fixture.tenants.find("a")->id, {}, devices, 100 * kMiB));
  CHECK(fixture.keeper.entries.size() == 1);
  fixture.ledger.release(SessionId(5));
  CHECK(fixture.keeper.entries.empty());
  CHECK(fixture.ledger.reserved_bytes(0) == 0);
}

// --- at random -----------------------------------------------------------------------------------------------------

constexpr unsigned kScenarios = 300, kSteps = 120;
constexpr uint64_t kCardBytes = 1000 * kMiB;

// Sessions of several tenants that begin with and without reservations, take memory, release it and end. `really` is
// the memory that a driver would have allocated.
class Scenario {
 public:
  explicit Scenario(uint64_t seed) : random_(seed), fixture_(some_tenants()) {}

  void run() {
    for (unsigned step = 0; step < kSteps; ++step) {
      act();
      hold();
    }
    while (!sessions_.empty()) end(0);
    for (const Tenant& one : fixture_.tenants.all()) {
      uint64_t others = 0;
      for (const Tenant& other : fixture_.tenants.all()) {
        if (other.id != one.id) others += other.settings.memory.guaranteed_bytes;
      }
      uint64_t limit = one.settings.memory.limit_bytes ? one.settings.memory.limit_bytes : kCardBytes;
      CHECK(fixture_.ledger.free_bytes(one.id, 0) == std::min(limit, kCardBytes - others));
    }
  }

 private:
  struct Session {
    std::unique_ptr<Worker> worker;
    uint64_t really = 0;
    uint64_t reserved() const { return worker->record.memory_bytes; }
    uint64_t held() const { return std::max(really, reserved()); }
  };
  uint64_t pick(uint64_t least, uint64_t most) { return std::uniform_int_distribution<uint64_t>(least, most)(random_); }
  std::vector<TenantConfiguration> some_tenants() {
    std::vector<TenantConfiguration> all;
    for (uint64_t i = 0, count = pick(1, 3); i < count; ++i) {
      uint64_t guaranteed = pick(0, 2) ? pick(0, 300) : 0, limit = pick(0, 1) ? guaranteed + pick(1, 700) : 0;
      all.push_back(tenant(std::string(1, char('a' + i)), guaranteed * kMiB, limit * kMiB));
    }
    return all;
  }

  void act() {
    switch (pick(0, 9)) {
      case 0: begin(0); break;
      case 1:
      case 2: begin(pick(1, 600) * kMiB); break;
      case 3:
        if (!sessions_.empty()) end(pick(0, sessions_.size() - 1));
        break;
      case 4:
      case 5: give_back(); break;
      default: take();
    }
  }

  void begin(uint64_t reserved) {
    const Tenant& who = fixture_.tenants.all()[pick(0, fixture_.tenants.all().size() - 1)];
    if (reserved) {
      // The free bytes can be reserved, and not one more.
      const uint64_t free = fixture_.ledger.free_bytes(who.id, 0);
      const SessionId nobody{++fixture_.number};
      std::vector<uint32_t> devices{0};
      CHECK_FALSE(fixture_.ledger.reserve(nobody, who.id, {}, devices, free + 1));
      if (free < reserved) return;
    }
    sessions_.push_back({fixture_.begin(who.settings.name, {0}, reserved)});
  }

  void end(size_t which) {
    fixture_.ledger.ended(sessions_[which].worker->record);
    sessions_.erase(sessions_.begin() + ptrdiff_t(which));
  }

  void give_back() {
    if (sessions_.empty()) return;
    Session& session = sessions_[pick(0, sessions_.size() - 1)];
    uint64_t bytes = pick(0, session.really);
    session.worker->ledger->give_back(0, bytes);
    session.really -= bytes;
  }

  void take() {
    if (sessions_.empty()) return;
    Session& session = sessions_[pick(0, sessions_.size() - 1)];
    fixture_.ledger.refresh();
    const uint64_t available = session.worker->ledger->available(0);
    uint64_t bytes = pick(0, 3) ? pick(1, 300) * kMiB : available + pick(0, 1);
    if (bytes == 0) return;
    bool taken = session.worker->ledger->reserve(0, bytes);
    CHECK(taken == (bytes <= available));
    bool within = session.really + bytes <= session.reserved();
    CHECK((taken || !within));
    if (taken) session.really += bytes;
  }

  void hold() {
    uint64_t all = 0, reserved = 0;
    for (const Tenant& one : fixture_.tenants.all()) {
      uint64_t held = 0;
      for (const Session& session : sessions_) {
        if (session.worker->record.tenant_id == one.id) held += session.held(), reserved += session.reserved();
      }
      if (one.settings.memory.limit_bytes) CHECK(held <= one.settings.memory.limit_bytes);
      all += std::max(held, one.settings.memory.guaranteed_bytes);
    }
    CHECK(all <= kCardBytes);
    CHECK(fixture_.ledger.reserved_bytes(0) == reserved);
  }

  std::mt19937_64 random_;
  Fixture fixture_;
  std::vector<Session> sessions_;
};

TEST_CASE(
    "with reservations nobody is over a limit or within another's guarantee, and what is shown as free can be had") {
  for (uint64_t seed = 1; seed <= kScenarios; ++seed) {
    CAPTURE(seed);
    Scenario(seed).run();
  }
}

}  // namespace
}  // namespace gpuwire::server
