// The memory of suspended sessions, which others may take, and which returns as a whole or not at all.
#include <doctest/doctest.h>

#include "test/server/ledger/broker/fixture.hpp"

namespace gpuwire::server {
namespace {

using namespace gpuwire::test;

uint64_t held(Fixture& fixture, Worker& worker) {
  return fixture.ledger.held_bytes(worker.record.number, worker.record.tenant_id, 0);
}

}  // namespace

TEST_CASE("others take what a suspended session had, and it returns when they have given it back") {
  Fixture fixture({tenant("anna", 0, 0), tenant("ben", 0, 0)});
  auto sleeper = fixture.begin("anna"), other = fixture.begin("ben");
  REQUIRE(sleeper->ledger->reserve(0, 700 * kMiB));
  CHECK_FALSE(other->ledger->reserve(0, 600 * kMiB));
  CHECK(fixture.ledger.why_not_released(sleeper->record).empty());
  CHECK(fixture.ledger.releasable_bytes(sleeper->record) == 700 * kMiB);
  CHECK(fixture.ledger.release_memory(sleeper->record) == 700 * kMiB);
  CHECK(held(fixture, *sleeper) == 0);
  CHECK(other->ledger->reserve(0, 600 * kMiB));
  CHECK_FALSE(fixture.ledger.take_memory(sleeper->record));
  CHECK(held(fixture, *sleeper) == 0);
  other->ledger->give_back(0, 400 * kMiB);
  CHECK(fixture.ledger.take_memory(sleeper->record));
  CHECK(held(fixture, *sleeper) == 700 * kMiB);
  CHECK_FALSE(other->ledger->reserve(0, 200 * kMiB));
  // It is charged as before: a free is of its own memory.
  sleeper->ledger->give_back(0, 700 * kMiB);
  CHECK(held(fixture, *sleeper) == 0);
}

TEST_CASE("a suspended session and its tenant's other sessions are within the tenant's limit together") {
  Fixture fixture({tenant("anna", 0, 500 * kMiB)});
  auto sleeper = fixture.begin("anna"), other = fixture.begin("anna");
  REQUIRE(sleeper->ledger->reserve(0, 400 * kMiB));
  fixture.ledger.release_memory(sleeper->record);
  CHECK(other->ledger->reserve(0, 300 * kMiB));
  CHECK_FALSE(fixture.ledger.take_memory(sleeper->record));
  CHECK(other->ledger->reserve(0, 200 * kMiB));
  other->ledger->give_back(0, 400 * kMiB);
  CHECK(fixture.ledger.take_memory(sleeper->record));
  CHECK_FALSE(other->ledger->reserve(0, 1));
}

TEST_CASE("a session returns on all its devices or on none") {
  Fixture fixture({tenant("anna", 0, 0), tenant("ben", 0, 0)});
  auto sleeper = fixture.begin("anna", {0, 1}), other = fixture.begin("ben", {1});
  REQUIRE(sleeper->ledger->reserve(0, 600 * kMiB));
  REQUIRE(sleeper->ledger->reserve(1, 600 * kMiB));
  CHECK(fixture.ledger.release_memory(sleeper->record) == 1200 * kMiB);
  REQUIRE(other->ledger->reserve(1, 600 * kMiB));
  CHECK_FALSE(fixture.ledger.take_memory(sleeper->record));
  CHECK(held(fixture, *sleeper) == 0);
  other->ledger->give_back(1, 600 * kMiB);
  CHECK(fixture.ledger.take_memory(sleeper->record));
  CHECK(fixture.ledger.held_bytes(sleeper->record.number, sleeper->record.tenant_id, 1) == 600 * kMiB);
}

TEST_CASE("a reservation of a suspended session is others' too, and a user's bound holds at its return") {
  TenantConfiguration course = tenant("course", 0, 0);
  course.each_user.memory_limit_bytes = 500 * kMiB;
  Fixture fixture({course, tenant("ben", 0, 0)});
  auto sleeper = fixture.begin("course", {0}, 400 * kMiB, "anna"), again = fixture.begin("course", {0}, 0, "anna"),
       other = fixture.begin("ben");
  REQUIRE(sleeper->ledger->reserve(0, 100 * kMiB));
  CHECK(fixture.ledger.release_memory(sleeper->record) == 400 * kMiB);
  CHECK(again->ledger->reserve(0, 200 * kMiB));
  CHECK(other->ledger->reserve(0, 700 * kMiB));
  other->ledger->give_back(0, 700 * kMiB);
  CHECK_FALSE(fixture.ledger.take_memory(sleeper->record));
  again->ledger->give_back(0, 200 * kMiB);
  CHECK(fixture.ledger.take_memory(sleeper->record));
}

TEST_CASE("what a session lacks is told, and whether the device or a limit is in the way") {
  using Of = MemoryShortage::Of;
  TenantConfiguration course = tenant("course", 0, 600 * kMiB);
  course.each_user.memory_limit_bytes = 300 * kMiB;
  Fixture fixture({course, tenant("ben", 100 * kMiB, 0)});
  auto anna = fixture.begin("course", {0}, 0, "anna"), ben = fixture.begin("ben");
  REQUIRE(anna->ledger->reserve(0, 200 * kMiB));
  REQUIRE(ben->ledger->reserve(0, 650 * kMiB));
  auto shortage = [&](Worker& of, uint64_t mib) { return fixture.ledger.shortage(of.record, 0, mib * kMiB); };
  CHECK(shortage(*anna, 100).bytes == 0);
  CHECK(shortage(*anna, 120).of == Of::user);
  CHECK(shortage(*anna, 120).bytes == 20 * kMiB);
  CHECK(shortage(*ben, 200).of == Of::device);
  CHECK(shortage(*ben, 200).bytes == 50 * kMiB);
  SessionRecord waiting = anna->record;  // of another user
  waiting.user = "dora";
  CHECK(fixture.ledger.shortage(waiting, 0, 250 * kMiB).of == Of::device);
  CHECK(fixture.ledger.shortage(waiting, 0, 250 * kMiB).bytes == 100 * kMiB);
  waiting.user.clear();
  CHECK(fixture.ledger.shortage(waiting, 0, 410 * kMiB).of == Of::tenant);
  CHECK(fixture.ledger.shortage(waiting, 0, 410 * kMiB).bytes == 10 * kMiB);
  // Memory that is away no longer counts for the tenant. The session's return needs the same amount.
  CHECK_FALSE(fixture.ledger.is_away(ben->record.number, ben->record.tenant_id));
  fixture.ledger.release_memory(ben->record);
  CHECK(fixture.ledger.is_away(ben->record.number, ben->record.tenant_id));
  CHECK(fixture.ledger.away_bytes(ben->record, 0) == 650 * kMiB);
  CHECK(fixture.ledger.away_bytes(ben->record, 1) == 0);
  CHECK(shortage(*ben, 200).bytes == 0);
}

TEST_CASE("a request waits for as long as a suspension helps, and gets the memory when it is offered") {
  using std::chrono::milliseconds;
  Fixture fixture({tenant("anna", 0, 0), tenant("ben", 0, 0)}, milliseconds(0));
  auto sleeper = fixture.begin("anna"), other = fixture.begin("ben");
  REQUIRE(sleeper->ledger->reserve(0, 700 * kMiB));
  SuspensionRelief relief = SuspensionRelief::coming;
  unsigned asked = 0;
  fixture.ledger.set_suspensions([&](SessionId session, scheduler::DeviceIndex device, uint64_t bytes) {
    CHECK((session == other->record.number && device == 0 && bytes == 600 * kMiB));
    ++asked;
    return relief;
  });
  CHECK_FALSE(other->ask_ahead(0, 600 * kMiB));  // a prefetch suspends nobody
  CHECK(asked == 0);
  auto& answers = fixture.control.answers;
  auto answered = [&] { return answers.contains(other->record.number); };
  for (const bool helps : {false, true}) {
    relief = SuspensionRelief::coming;
    other->ask(0, 600 * kMiB);
    CHECK_FALSE(answered());
    fixture.io.restart();
    fixture.io.run_one();
    CHECK_FALSE(answered());
    if (helps) {
      fixture.ledger.release_memory(sleeper->record);
      CHECK_FALSE(answered());
      fixture.ledger.offer_memory();
      CHECK(fixture.control.reconsidered == 1);
    } else {
      relief = SuspensionRelief::none;
      while (!answered()) fixture.io.run_one();
    }
    REQUIRE(answered());
    CHECK(answers[other->record.number] == helps);
  }
  CHECK(asked > 2);
}

TEST_CASE("memory that sessions share stays, and a suspended session that ends leaves nothing") {
  Fixture fixture({tenant("anna", 0, 0)});
  auto exporter = fixture.begin("anna"), importer = fixture.begin("anna"), sleeper = fixture.begin("anna");
  REQUIRE(exporter->ledger->reserve(0, kMiB));
  exporter->ledger->share(0, kMiB);
  importer->ledger->note_import();
  CHECK(fixture.ledger.why_not_released(exporter->record) == "it shares device memory with other sessions");
  CHECK(fixture.ledger.why_not_released(importer->record) == "it shares device memory with other sessions");
  REQUIRE(sleeper->ledger->reserve(0, 500 * kMiB));
  fixture.ledger.release_memory(sleeper->record);
  fixture.ledger.ended(sleeper->record);
  auto next = fixture.begin("anna");
  CHECK(next->ledger->used(0) == 0);
  REQUIRE(next->ledger->reserve(0, 500 * kMiB));
  CHECK(held(fixture, *next) == 500 * kMiB);
}

}  // namespace gpuwire::server
