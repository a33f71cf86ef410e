// The memory bounds of a tenant's users, over sessions, reservations, reloads and successive brokers.
#include <memory>
#include <thread>

#include <doctest/doctest.h>

#include "test/server/ledger/broker/fixture.hpp"

namespace gpuwire::server {
namespace {

using namespace gpuwire::test;

// Each user may have 300 MiB, ben 500.
TenantConfiguration course(uint64_t limit, uint64_t each_user = 300 * kMiB) {
  TenantConfiguration settings = tenant("course", 0, limit);
  settings.each_user.memory_limit_bytes = each_user;
  settings.users["ben"].memory_limit_bytes = 500 * kMiB;
  return settings;
}

uint64_t used_by(Worker& worker) { return worker.ledger->used(0); }

}  // namespace

TEST_CASE("a user's sessions have no byte more than the user's bound, and the other users have what the tenant has") {
  Fixture fixture({course(900 * kMiB)});
  auto anna = fixture.begin("course", {0}, 0, "anna"), again = fixture.begin("course", {0}, 0, "anna"),
       ben = fixture.begin("course", {0}, 0, "ben"), nobody = fixture.begin("course");
  CHECK(anna->spec.devices[0].limit_bytes == 300 * kMiB);
  CHECK(ben->spec.devices[0].limit_bytes == 500 * kMiB);
  CHECK(nobody->spec.devices[0].limit_bytes == 900 * kMiB);
  CHECK(anna->ledger->limit(0) == 300 * kMiB);
  CHECK(anna->ledger->reserve(0, 200 * kMiB));
  CHECK(again->ledger->available(0) == 100 * kMiB);
  CHECK_FALSE(again->ledger->reserve(0, 100 * kMiB + 1));
  CHECK(again->ledger->reserve(0, 100 * kMiB));
  CHECK_FALSE(anna->ledger->reserve(0, 1));
  CHECK(ben->ledger->reserve(0, 500 * kMiB));
  CHECK_FALSE(ben->ledger->reserve(0, 1));
  CHECK(nobody->ledger->reserve(0, 100 * kMiB));
  CHECK_FALSE(nobody->ledger->reserve(0, 1));  // the tenant's own limit
  again->ledger->give_back(0, 100 * kMiB);
  CHECK(anna->ledger->reserve(0, 100 * kMiB));
  CHECK_FALSE(again->ledger->reserve(0, 1));
  fixture.ledger.ended(anna->record);
  CHECK(again->ledger->reserve(0, 300 * kMiB));
}

TEST_CASE("a user's bound is of each GPU, and not of the server's own memory") {
  Fixture fixture({course(0)});
  auto anna = fixture.begin("course", {0, 1}, 0, "anna");
  CHECK(anna->ledger->reserve(0, 300 * kMiB));
  CHECK(anna->ledger->reserve(1, 300 * kMiB));
  CHECK_FALSE(anna->ledger->reserve(1, 1));
  CHECK(anna->ledger->reserve(kHostColumn, 700 * kMiB));
}

TEST_CASE("a user's reservations and what the user's other sessions use count together") {
  Fixture fixture({course(0)});
  auto anna = fixture.begin("course", {0}, 0, "anna");
  const TenantId id = fixture.tenants.find("course")->id;
  const std::vector<uint32_t> devices{0};
  REQUIRE(anna->ledger->reserve(0, 200 * kMiB));
  CHECK_FALSE(fixture.ledger.reserve(SessionId(90), id, "anna", devices, 100 * kMiB + 1));
  CHECK(fixture.ledger.reserved_bytes(0) == 0);
  auto reserved = fixture.begin("course", {0}, 100 * kMiB, "anna");
  CHECK_FALSE(anna->ledger->reserve(0, 1));
  CHECK(reserved->ledger->reserve(0, 100 * kMiB));
  CHECK_FALSE(reserved->ledger->reserve(0, 1));
  CHECK(fixture.ledger.reserve(SessionId(91), id, "ben", devices, 500 * kMiB));
  fixture.ledger.ended(reserved->record);
  CHECK(anna->ledger->reserve(0, 100 * kMiB));
}

TEST_CASE("memory ahead of a program leaves a part of its user's bound free") {
  Fixture fixture({course(0)});
  auto anna = fixture.begin("course", {0}, 0, "anna");
  const SessionLedger::Ahead ahead(SessionLedger::Grant::may_grow);
  CHECK_FALSE(anna->ledger->reserve(0, 300 * kMiB));
  CHECK(anna->ledger->reserve(0, 200 * kMiB));
}

TEST_CASE("the broker refuses what is beyond a user's bound, whatever a worker writes over the page of users") {
  Fixture fixture({course(0)});
  auto anna = fixture.begin("course", {0}, 0, "anna"), again = fixture.begin("course", {0}, 0, "anna");
  REQUIRE(anna->ledger->reserve(0, 250 * kMiB));
  CHECK_FALSE(again->ask(0, 50 * kMiB + 1));
  CHECK(again->ask(0, 50 * kMiB));
  for (uint32_t slot = 0; slot < kPageSlotsMax; ++slot) anna->users().limit[slot] = 0, anna->users().user[slot] = 0;
  CHECK_FALSE(again->ask(0, 50 * kMiB + 1));
  CHECK_FALSE(
      fixture.ledger.reserve(SessionId(9), anna->record.tenant_id, "anna", std::vector<uint32_t>{0}, 50 * kMiB + 1));
}

TEST_CASE("a bound of users that a reload lowers or lifts holds for sessions that run") {
  Fixture fixture({course(0)});
  auto anna = fixture.begin("course", {0}, 0, "anna"), again = fixture.begin("course", {0}, 0, "anna");
  REQUIRE(anna->ledger->reserve(0, 200 * kMiB));
  auto reload = [&](uint64_t each_user) {
    fixture.tenants.replace({course(0, each_user)});
    fixture.ledger.tenants_changed(fixture.tenants);
  };
  reload(100 * kMiB);
  CHECK(used_by(*anna) == 200 * kMiB);
  CHECK_FALSE(anna->ledger->reserve(0, 1));
  CHECK_FALSE(again->ledger->reserve(0, 1));
  anna->ledger->give_back(0, 150 * kMiB);
  CHECK(again->ledger->reserve(0, 50 * kMiB));
  CHECK_FALSE(again->ledger->reserve(0, 1));
  reload(0);
  CHECK(again->ledger->reserve(0, 800 * kMiB));
}

TEST_CASE("a user's bound holds over a restart, for sessions that go on and for those that begin") {
  CachedFixture before({course(0)});
  auto anna = before.begin("course", 0, "anna"), reserved = before.begin("course", 50 * kMiB, "anna");
  REQUIRE(anna->ledger->reserve(0, 200 * kMiB));
  NextLedger next(before.keeper, {course(0)});
  CHECK_FALSE(anna->ledger->reserve(0, 50 * kMiB + 1));  // while there is no broker
  REQUIRE(next.adopt(before.ledger, *anna));
  REQUIRE(next.adopt(before.ledger, *reserved));
  next.ledger.all_adopted();
  Worker after(next.ledger, next.control, next.tenants, "course", 77, {0}, 0, "anna");
  CHECK_FALSE(after.ledger->reserve(0, 50 * kMiB + 1));
  CHECK(after.ledger->reserve(0, 50 * kMiB));
  CHECK_FALSE(anna->ledger->reserve(0, 1));
  CHECK_FALSE(next.ledger.reserve(SessionId(78), next.tenants.find("course")->id, "anna", std::vector<uint32_t>{0}, 1));
  next.ledger.ended(after.record);
  CHECK(anna->ledger->reserve(0, 50 * kMiB));
}

TEST_CASE("sessions of a server that knew no bounds of users go on, and what they have counts for those that begin") {
  CachedFixture before({course(0)});
  auto anna = before.begin("course", 0, "anna");
  REQUIRE(anna->ledger->reserve(0, 200 * kMiB));
  for (auto& [name, entry] : before.keeper.entries) entry.descriptors.resize(2);
  auto next = std::make_unique<NextLedger>(before.keeper, std::vector{course(0)});
  REQUIRE(next->adopt(before.ledger, *anna));
  next->ledger.all_adopted();
  Worker after(next->ledger, next->control, next->tenants, "course", 77, {0}, 0, "anna");
  CHECK_FALSE(after.ledger->reserve(0, 100 * kMiB + 1));
  CHECK(after.ledger->reserve(0, 100 * kMiB));
  for (auto& [name, entry] : before.keeper.entries) CHECK(entry.descriptors.size() == 3);
}

TEST_CASE("sessions of one user that race have all of the user's bound at the end, and never more") {
  constexpr unsigned kSessions = 4;
  constexpr uint64_t kPiece = 1 << 20, kPieces = 301;
  auto page = SharedPage<TenantPage>::create().value();
  auto users = SharedPage<UserPage>::create().value();
  page->slots = 2 * kSessions + 1;
  page->column[0].allowance = page->column[0].limit = kPageBytesMax;
  std::vector<std::unique_ptr<SessionLedger>> ledgers;
  for (uint32_t slot = 1; slot <= 2 * kSessions; ++slot) {
    users->user[slot] = user_key(slot % 2 ? "anna" : "ben");
    users->limit[slot] = kPieces * kPiece;
    ledgers.push_back(std::make_unique<SessionLedger>(*page, slot, nullptr));
    ledgers.back()->set_user(*users, users->user[slot]);
  }
  std::atomic<bool> exceeded{false};
  std::vector<std::thread> threads;
  for (auto& ledger : ledgers) {
    threads.emplace_back([&] {
      unsigned refused = 0;
      for (unsigned i = 0; refused < 200; ++i) {
        if (!ledger->reserve(0, kPiece)) ++refused;
        else if (i % 3 == 0) ledger->give_back(0, kPiece);
        for (const char* user : {"anna", "ben"})
          if (used_by_user(*page, *users, 0, user_key(user)) > kPieces * kPiece + kSessions * kPiece) exceeded = true;
      }
    });
  }
  for (std::thread& thread : threads) thread.join();
  CHECK_FALSE(exceeded);
  for (const char* user : {"anna", "ben"}) CHECK(held_by_user(*page, *users, 0, user_key(user)) == kPieces * kPiece);
}

}  // namespace gpuwire::server
