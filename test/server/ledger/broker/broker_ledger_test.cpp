// The broker's half of the ledger: pages, allowances, tenants that are short of memory, sessions that end.
#include <memory>
#include <set>

#include <doctest/doctest.h>

#include "test/server/ledger/broker/fixture.hpp"

namespace gpuwire::server {
namespace {

using namespace gpuwire::test;

TEST_CASE("sessions of a tenant share one page and one limit, and other tenants have another page") {
  Fixture fixture({tenant("a", 0, 100 * kMiB), tenant("b", 0, 0)});
  auto one = fixture.begin("a"), two = fixture.begin("a"), other = fixture.begin("b");
  CHECK(one->spec.ledger_slot != two->spec.ledger_slot);
  CHECK(one->spec.devices[0].limit_bytes == 100 * kMiB);
  CHECK(other->spec.devices[0].limit_bytes == 0);
  CHECK(one->ledger->reserve(0, 60 * kMiB));
  CHECK_FALSE(two->ledger->reserve(0, 41 * kMiB));
  CHECK(two->ledger->reserve(0, 40 * kMiB));
  CHECK(used_by_all(other->page(), 0) == 0);
  CHECK(other->ledger->reserve(0, 900 * kMiB));
  CHECK_FALSE(other->ledger->reserve(0, 1));
  CHECK(fixture.free_bytes("b") == 0);
}

TEST_CASE("slots are given out by the broker's own count, whatever a worker writes over the page's") {
  Fixture fixture({tenant("a", 0, 0)});
  auto one = fixture.begin("a"), two = fixture.begin("a");
  TenantPage& page = one->page();
  for (PageSlot& slot : page.slot) slot.session = 7;
  auto third = fixture.begin("a");
  for (PageSlot& slot : page.slot) slot.session = 0;
  page.slots = UINT32_MAX;
  auto fourth = fixture.begin("a");
  std::set<uint32_t> slots{one->spec.ledger_slot, two->spec.ledger_slot, third->spec.ledger_slot,
                           fourth->spec.ledger_slot};
  CHECK(slots.size() == 4);
  CHECK(slots.count(kLeftSlot) == 0);
  CHECK(page.slots == *slots.rbegin() + 1);
}

TEST_CASE("an allowance that a worker has written over the page's is not believed") {
  Fixture fixture({tenant("a", 300 * kMiB, 0), tenant("b", 0, 0)});
  auto one = fixture.begin("a"), two = fixture.begin("a");
  REQUIRE(one->ledger->reserve(0, 200 * kMiB));
  one->page().column[0].allowance = 0;
  fixture.ledger.ended(two->record);
  CHECK(fixture.free_bytes("b") <= 700 * kMiB);
  CHECK(one->ledger->reserve(0, 100 * kMiB));  // within its guarantee
}

TEST_CASE("one session's questions do not fill the places of all others") {
  Fixture fixture({tenant("a", 0, 0), tenant("b", 0, 0), tenant("c", 0, 0)});
  auto holder = fixture.begin("a"), flood = fixture.begin("b"), victim = fixture.begin("c");
  REQUIRE(holder->ledger->reserve(0, 990 * kMiB));
  size_t unanswered = 0;
  for (size_t i = 0; i < kMemoryWaitersMax + 1; ++i) {
    flood->ask(0, 100 * kMiB);
    unanswered += !fixture.control.answers.contains(flood->record.number);
  }
  CHECK(unanswered == kMemoryWaitersPerSessionMax);
  CHECK_FALSE(victim->ask(0, 100 * kMiB));
  CHECK_FALSE(fixture.control.answers.contains(victim->record.number));  // it waits for memory that the others release
}

TEST_CASE("what a tenant does not use is taken back when another wants it, and a guarantee is never lent") {
  Fixture fixture({tenant("a", 300 * kMiB, 0), tenant("b", 0, 0)});
  auto a = fixture.begin("a"), b = fixture.begin("b");
  CHECK(fixture.free_bytes("b") == 700 * kMiB);
  CHECK(a->ledger->reserve(0, 600 * kMiB));
  a->ledger->give_back(0, 590 * kMiB);
  CHECK(fixture.free_bytes("b") == 700 * kMiB);
  CHECK(b->ledger->reserve(0, 700 * kMiB));
  CHECK_FALSE(b->ledger->reserve(0, 1));
  // b's request takes the rest of a's loan, and no more: within its guarantee a needs no request.
  unsigned asked = a->asked;
  CHECK(a->ledger->reserve(0, 290 * kMiB));
  CHECK(a->asked == asked);
  CHECK_FALSE(a->ledger->reserve(0, 1));
}

TEST_CASE("who is short of memory waits until it is given back, or somebody ends") {
  Fixture fixture({tenant("a", 0, 0), tenant("b", 0, 0)});
  auto a = fixture.begin("a"), b = fixture.begin("b");
  REQUIRE(a->ledger->reserve(0, 1000 * kMiB));
  fixture.control.answers.clear();
  SUBCASE("given back") {
    ipc::Message question = ipc::MemoryWanted{1, 0, 500 * kMiB};
    REQUIRE(fixture.ledger.on_message(b->record, question));
    CHECK(fixture.control.answers.empty());
    a->ledger->give_back(0, 400 * kMiB);
    fixture.io.run_one();
    CHECK(fixture.control.answers.empty());
    a->ledger->give_back(0, 100 * kMiB);
    while (fixture.control.answers.empty()) fixture.io.run_one();
    CHECK(fixture.control.answers[b->record.number]);
    CHECK(b->ledger->reserve(0, 500 * kMiB));
  }
  SUBCASE("its holder ends") {
    ipc::Message question = ipc::MemoryWanted{1, 0, 1000 * kMiB};
    REQUIRE(fixture.ledger.on_message(b->record, question));
    fixture.ledger.ended(a->record);
    CHECK(fixture.control.answers[b->record.number]);
  }
  SUBCASE("the one who waits ends") {
    ipc::Message question = ipc::MemoryWanted{1, 0, 500 * kMiB};
    REQUIRE(fixture.ledger.on_message(b->record, question));
    fixture.ledger.ended(b->record);
    fixture.io.run();
    CHECK(fixture.control.answers.empty());
  }
}

TEST_CASE("a look at all who wait, for memory or for a place, sums up each tenant's page once, however many they are") {
  constexpr size_t kTenants = 20;
  std::vector<TenantConfiguration> configured;
  for (size_t i = 0; i < kTenants; ++i) configured.push_back(tenant("t" + std::to_string(i), 0, 0));
  Fixture fixture(std::move(configured));
  std::vector<std::unique_ptr<Worker>> workers;
  for (size_t i = 0; i < kTenants; ++i) workers.push_back(fixture.begin("t" + std::to_string(i)));
  REQUIRE(workers[0]->ledger->reserve(0, 1000 * kMiB));
  for (size_t i = 1; i < kTenants; ++i) {
    for (size_t question = 0; question < kMemoryWaitersPerSessionMax; ++question)
      CHECK_FALSE(workers[i]->ask(0, (100 + question) * kMiB));
  }
  uint64_t before = fixture.ledger.page_sums();
  fixture.io.run_one();
  CHECK(fixture.ledger.page_sums() - before <= kTenants);
  before = fixture.ledger.page_sums();
  {
    SessionMemory::Poll poll(&fixture.ledger);
    for (size_t i = 0; i < kTenants; ++i) CHECK(fixture.free_bytes("t" + std::to_string(i)) == 0);
    CHECK(fixture.ledger.page_sums() - before == kTenants);
    // Memory that the broker itself releases counts at once.
    fixture.ledger.ended(workers[0]->record);
    CHECK(fixture.control.answers[workers[1]->record.number]);
  }
}

TEST_CASE("memory ahead of a program comes of what is free at once, and nobody else's is taken back or waited for") {
  Fixture fixture({tenant("a", 0, 0), tenant("b", 0, 0)});
  auto a = fixture.begin("a"), b = fixture.begin("b");
  REQUIRE(a->ledger->reserve(0, 600 * kMiB));
  CHECK(b->ask_ahead(0, 100 * kMiB));
  a->ledger->give_back(0, 600 * kMiB);
  fixture.control.answers.clear();
  CHECK_FALSE(b->ask_ahead(0, 900 * kMiB));
  CHECK(fixture.control.answers.contains(b->record.number));  // it gets a refusal
  CHECK(a->ask(0, 0));
  CHECK(b->ask(0, 900 * kMiB));
}

TEST_CASE("while another tenant's client may hold memory ahead of its program, that is waited for, too") {
  Fixture fixture({tenant("a", 0, 0), tenant("b", 0, 0)}, std::chrono::milliseconds(0));
  auto a = fixture.begin("a"), b = fixture.begin("b");
  REQUIRE(a->ledger->reserve(0, 1000 * kMiB));
  a->page().slot[a->spec.ledger_slot].ahead_until_s = UINT32_MAX;
  fixture.control.answers.clear();
  ipc::Message question = ipc::MemoryWanted{1, 0, 500 * kMiB};
  REQUIRE(fixture.ledger.on_message(b->record, question));
  CHECK(fixture.control.answers.empty());
  a->ledger->give_back(0, 500 * kMiB);
  while (fixture.control.answers.empty()) fixture.io.run_one();
  CHECK(fixture.control.answers[b->record.number]);
}

TEST_CASE("who is short of memory waits for so long and no longer") {
  Fixture fixture({tenant("a", 0, 0), tenant("b", 0, 0)}, kMemoryShortage);
  auto a = fixture.begin("a"), b = fixture.begin("b");
  REQUIRE(a->ledger->reserve(0, 1000 * kMiB));
  fixture.control.answers.clear();
  ipc::Message question = ipc::MemoryWanted{1, 0, 500 * kMiB};
  auto begun = std::chrono::steady_clock::now();
  REQUIRE(fixture.ledger.on_message(b->record, question));
  while (fixture.control.answers.empty()) fixture.io.run_one();
  CHECK_FALSE(fixture.control.answers[b->record.number]);
  CHECK(std::chrono::steady_clock::now() - begun >= kMemoryShortage);
}

TEST_CASE("a session that ends gives everything back, whatever its worker was doing") {
  Fixture fixture({tenant("a", 100 * kMiB, 0)});
  auto one = fixture.begin("a"), two = fixture.begin("a");
  REQUIRE(one->ledger->reserve(0, 500 * kMiB));
  REQUIRE(one->ledger->reserve(kHostColumn, 5));
  one->page().turn = one->spec.ledger_slot + 1;  // killed while it reserved
  fixture.ledger.ended(one->record);
  CHECK(fixture.control.reconsidered == 1);
  CHECK(two->page().turn == 0);
  CHECK(used_by_all(two->page(), 0) == 0);
  CHECK(used_by_all(two->page(), kHostColumn) == 0);
  CHECK(two->page().column[0].allowance == 100 * kMiB);
  // Its slot is free again.
  auto three = fixture.begin("a");
  CHECK(three->spec.ledger_slot == one->spec.ledger_slot);
}

TEST_CASE("what a session has shared stays charged while another may have it open") {
  Fixture fixture({tenant("a", 0, 0)});
  auto maker = fixture.begin("a"), user = fixture.begin("a");
  REQUIRE(maker->ledger->reserve(0, 50 * kMiB));
  maker->ledger->share(0, 30 * kMiB);
  user->ledger->note_import();
  fixture.ledger.ended(maker->record);
  CHECK(used_by_all(user->page(), 0) == 30 * kMiB);
  auto last = fixture.begin("a");
  fixture.ledger.ended(user->record);
  CHECK(used_by_all(last->page(), 0) == 0);
}

TEST_CASE("a worker that lies gets no more than its tenant's limit, and harms no other tenant") {
  Fixture fixture({tenant("a", 0, 200 * kMiB), tenant("b", 500 * kMiB, 0)});
  auto liar = fixture.begin("a"), honest = fixture.begin("b");
  TenantPage& page = liar->page();
  page.column[0].used[liar->spec.ledger_slot] = UINT64_MAX;
  page.column[0].used[7] = UINT64_MAX;
  page.column[0].allowance = UINT64_MAX;
  page.slots = UINT32_MAX;
  page.turn = 99;
  CHECK_FALSE(liar->ask(0, 1));
  CHECK_FALSE(liar->ask(0, UINT64_MAX));
  CHECK_FALSE(liar->ask(77, 1));
  CHECK(honest->ledger->reserve(0, 900 * kMiB));
  page.column[0].used[liar->spec.ledger_slot] = 0;
  page.slots = 0;
  CHECK_FALSE(liar->ask(0, 150 * kMiB));
  CHECK(fixture.free_bytes("b") == 100 * kMiB);
  fixture.ledger.ended(liar->record);
  CHECK(honest->ledger->reserve(0, 100 * kMiB));
}

TEST_CASE("a worker that clears the words of its tenant's page gives nobody's slot to another session") {
  Fixture fixture({tenant("a", 0, 0)});
  auto first = fixture.begin("a"), second = fixture.begin("a");
  for (PageSlot& slot : first->page().slot) slot.session = 0;
  first->page().slots = UINT32_MAX;
  auto third = fixture.begin("a");
  CHECK(third->spec.ledger_slot != first->spec.ledger_slot);
  CHECK(third->spec.ledger_slot != second->spec.ledger_slot);
}

TEST_CASE("a configuration that is read again takes effect on sessions that there are") {
  Fixture fixture({tenant("a", 0, 0), tenant("b", 0, 0)});
  auto a = fixture.begin("a"), b = fixture.begin("b");
  REQUIRE(a->ledger->reserve(0, 700 * kMiB));
  fixture.tenants.replace({tenant("a", 0, 500 * kMiB), tenant("b", 600 * kMiB, 0)});
  fixture.ledger.tenants_changed(fixture.tenants);
  CHECK_FALSE(a->ledger->reserve(0, 1));
  CHECK(b->ledger->reserve(0, 300 * kMiB));
  CHECK_FALSE(b->ledger->reserve(0, 1));
  // A guarantee that was set while its memory was lent applies once the memory is back.
  a->ledger->give_back(0, 300 * kMiB);
  CHECK(b->ledger->reserve(0, 300 * kMiB));
  CHECK(a->ledger->reserve(0, 0));
  CHECK_FALSE(a->ledger->reserve(0, 1));
}

TEST_CASE("a server whose spare contexts take memory gives out that much less") {
  boost::asio::io_context io;
  Control control;
  BrokerLedger ledger(io, control, {.prewarmed_workers = 2});
  std::vector<ServerDevice> devices{{.index = 0, .bytes = 10'000 * kMiB, .taken_bytes = 500 * kMiB},
                                    {.index = 1, .bytes = 10'000 * kMiB}};
  ledger.devices_known(devices);
  CHECK(ledger.device_bytes(0) == (10'000 - 2 * 500 - 256) * kMiB);
  CHECK(ledger.device_bytes(1) == ledger.device_bytes(0));
  TenantDirectory tenants({tenant("a", 0, 0)});
  ledger.tenants_changed(tenants);
  Worker worker(ledger, control, tenants, "a", 1, {1, 0});
  CHECK(worker.ledger->context_bytes(0) == 500 * kMiB);
  CHECK(worker.ledger->context_bytes(1) == 500 * kMiB);
}

// --- spares beyond the minimum ----------------------------------------------------------------------

namespace {

// The pools of workers, whose spares end on the test's signal.
class Prewarmed final : public PrewarmedContexts {
 public:
  void keep_at_most(scheduler::DeviceIndex device, size_t contexts) override {
    most[device] = contexts;
    ++asked;
  }
  std::map<scheduler::DeviceIndex, size_t> most;
  unsigned asked = 0;
};

// One GPU with 1000 MiB for tenants beside one spare's context of 100 MiB.
struct PrewarmedFixture {
  explicit PrewarmedFixture(std::vector<TenantConfiguration> configured) : tenants(std::move(configured)) {
    ledger.set_prewarmed(prewarmed);
    std::vector<ServerDevice> devices{{.index = 0, .bytes = (1000 + 100 + 256) * kMiB, .taken_bytes = 100 * kMiB}};
    ledger.devices_known(devices);
    ledger.tenants_changed(tenants);
  }
  std::unique_ptr<Worker> begin(const std::string& tenant, uint64_t reserved_bytes = 0) {
    return std::make_unique<Worker>(ledger, control, tenants, tenant, ++number, std::vector<uint32_t>{0},
                                    reserved_bytes);
  }
  uint64_t free_bytes(const std::string& tenant) const { return ledger.free_bytes(tenants.find(tenant)->id, 0); }

  boost::asio::io_context io;
  Control control;
  Prewarmed prewarmed;
  TenantDirectory tenants;
  BrokerLedger ledger{io, control, {.prewarmed_workers = 1, .shortage = std::chrono::milliseconds(0)}};
  uint64_t number = 0;
};

}  // namespace

TEST_CASE("spares have what no tenant holds or is guaranteed, and their contexts count while they are there") {
  PrewarmedFixture fixture({tenant("a", 0, 0), tenant("b", 450 * kMiB, 0)});
  CHECK(fixture.ledger.prewarmed_max(0) == 1 + 5);
  auto a = fixture.begin("a");
  REQUIRE(a->ledger->reserve(0, 320 * kMiB));
  CHECK(fixture.ledger.prewarmed_max(0) == 1 + 2);
  fixture.ledger.prewarmed_changed(0, 3);
  CHECK(fixture.ledger.prewarmed_max(0) == 1 + 2);
  Snapshot snapshot{.devices = {{.index = 0}}};
  fixture.ledger.add(snapshot);
  CHECK(snapshot.devices[0].prewarmed_workers == 3);
  CHECK(snapshot.devices[0].prewarmed_memory_bytes == 300 * kMiB);
  // Tenants see this memory as free: a request gets it.
  CHECK(fixture.free_bytes("a") == 230 * kMiB);
  fixture.ledger.prewarmed_changed(0, 1);
  CHECK(fixture.free_bytes("a") == 230 * kMiB);
}

TEST_CASE("an allocation that needs the memory of spares waits until as many as that takes are gone, and no more") {
  PrewarmedFixture fixture({tenant("a", 0, 0)});
  auto a = fixture.begin("a");
  fixture.ledger.prewarmed_changed(0, 1 + 5);
  REQUIRE(a->ledger->reserve(0, 500 * kMiB));
  CHECK(fixture.prewarmed.asked == 0);
  CHECK_FALSE(a->ask(0, 150 * kMiB));
  CHECK_FALSE(fixture.control.answers.contains(a->record.number));  // it is not refused
  CHECK(fixture.prewarmed.most[0] == 1 + 3);
  fixture.ledger.prewarmed_changed(0, 1 + 4);
  CHECK_FALSE(fixture.control.answers.contains(a->record.number));
  fixture.ledger.prewarmed_changed(0, 1 + 3);
  REQUIRE(fixture.control.answers.contains(a->record.number));
  CHECK(fixture.control.answers[a->record.number]);
  CHECK(a->ledger->reserve(0, 150 * kMiB));
}

TEST_CASE("spares are not ended for who may not have their memory anyway") {
  PrewarmedFixture fixture({tenant("a", 0, 600 * kMiB), tenant("b", 200 * kMiB, 0)});
  auto a = fixture.begin("a");
  fixture.ledger.prewarmed_changed(0, 1 + 3);
  REQUIRE(a->ledger->reserve(0, 500 * kMiB));
  CHECK_FALSE(a->ask(0, 101 * kMiB));
  CHECK(fixture.control.answers.contains(a->record.number));
  CHECK(fixture.prewarmed.asked == 0);
}

TEST_CASE("what is guaranteed waits for no spare") {
  PrewarmedFixture fixture({tenant("a", 0, 0), tenant("b", 400 * kMiB, 0)});
  fixture.ledger.prewarmed_changed(0, fixture.ledger.prewarmed_max(0));
  auto b = fixture.begin("b");
  CHECK(b->ledger->reserve(0, 400 * kMiB));
  CHECK(b->asked == 0);
  CHECK(fixture.prewarmed.asked == 0);
}

TEST_CASE("a guarantee that grows has the spares in its way end at once") {
  PrewarmedFixture fixture({tenant("a", 0, 0), tenant("b", 100 * kMiB, 0)});
  fixture.ledger.prewarmed_changed(0, 1 + 9);
  fixture.tenants.replace({tenant("a", 0, 0), tenant("b", 1000 * kMiB, 0)});
  fixture.ledger.tenants_changed(fixture.tenants);
  CHECK(fixture.prewarmed.most[0] == 1);
  auto b = fixture.begin("b");
  CHECK_FALSE(b->ask(0, 1000 * kMiB));
  fixture.ledger.prewarmed_changed(0, 1);
  CHECK(fixture.control.answers[b->record.number]);
}

TEST_CASE("a reservation is made when the spares in its way are gone, and who waits for it is looked at then") {
  PrewarmedFixture fixture({tenant("a", 0, 0)});
  const TenantId a = fixture.tenants.find("a")->id;
  fixture.ledger.prewarmed_changed(0, 1 + 9);
  CHECK(fixture.free_bytes("a") == 1000 * kMiB);
  const std::vector<uint32_t> devices{0};
  CHECK_FALSE(fixture.ledger.reserve(SessionId(7), a, {}, devices, 800 * kMiB));
  CHECK(fixture.prewarmed.most[0] == 1 + 2);
  const unsigned before = fixture.control.reconsidered;
  fixture.ledger.prewarmed_changed(0, 1 + 2);
  CHECK(fixture.control.reconsidered == before + 1);
  CHECK(fixture.ledger.reserve(SessionId(7), a, {}, devices, 800 * kMiB));
}

// --- a successor of a broker ---------------------------------------------------------------------------------

TEST_CASE("memory that sessions hold when their broker dies is theirs under the next one, and nobody else's") {
  CachedFixture before({tenant("a", 0, 0), tenant("b", 100 * kMiB, 0)});
  auto one = before.begin("a"), two = before.begin("a");
  REQUIRE(one->ledger->reserve(0, 500 * kMiB));
  REQUIRE(two->ledger->reserve(0, 200 * kMiB));
  // The tenants have another order, and so other numbers.
  NextLedger next(before.keeper, {tenant("b", 100 * kMiB, 0), tenant("a", 0, 0)});
  REQUIRE(next.adopt(before.ledger, *one));
  REQUIRE(next.adopt(before.ledger, *two));
  next.ledger.all_adopted();
  CHECK(next.free_bytes("b") == 300 * kMiB);
  CHECK(next.free_bytes("a") == 200 * kMiB);
  Worker other(next.ledger, next.control, next.tenants, "a", 9, {0});
  CHECK(other.spec.ledger_slot != one->spec.ledger_slot);
  CHECK(other.spec.ledger_slot != two->spec.ledger_slot);
  CHECK(other.ledger->used_by_tenant(0) == 700 * kMiB);
  next.ledger.ended(one->record);
  CHECK(next.free_bytes("b") == 800 * kMiB);
  next.ledger.ended(two->record);
  next.ledger.ended(other.record);
  CHECK(before.keeper.entries.empty());
}

TEST_CASE("a page that a worker has written over gives it no more after a restart") {
  CachedFixture before({tenant("a", 0, 300 * kMiB), tenant("b", 500 * kMiB, 0)});
  auto one = before.begin("a"), two = before.begin("a");
  REQUIRE(one->ledger->reserve(0, 100 * kMiB));
  TenantPage& page = one->page();
  page.column[0].allowance = page.column[0].limit = kPageBytesMax;
  for (PageSlot& slot : page.slot) slot.session = 1;
  for (uint32_t slot = 10; slot < 20; ++slot) page.column[0].used[slot] = kPageBytesMax;
  page.slots = UINT32_MAX;
  page.turn = 200;
  NextLedger next(before.keeper, {tenant("a", 0, 300 * kMiB), tenant("b", 500 * kMiB, 0)});
  REQUIRE(next.adopt(before.ledger, *one));
  REQUIRE(next.adopt(before.ledger, *two));
  next.ledger.all_adopted();
  CHECK(page.column[0].limit == 300 * kMiB);
  CHECK(page.column[0].allowance <= 300 * kMiB);
  CHECK(used_by_all(page, 0) == 100 * kMiB);
  CHECK(next.free_bytes("a") == 200 * kMiB);
  CHECK(next.free_bytes("b") >= 500 * kMiB);
}

TEST_CASE("a session whose slot is another's, or none, is not adopted") {
  CachedFixture before({tenant("a", 0, 0)});
  auto one = before.begin("a");
  NextLedger next(before.keeper, {tenant("a", 0, 0)});
  REQUIRE(next.adopt(before.ledger, *one));
  KeptEntry none;
  SessionRecord other = one->record;
  other.number = SessionId(77);
  for (uint32_t slot : {one->spec.ledger_slot, kLeftSlot, kPageSlotsMax, UINT32_MAX}) {
    KeptSession kept;
    kept.ledger_slot = slot;
    CHECK_FALSE(next.ledger.adopt(other, kept, none));
  }
}

TEST_CASE("a tenant that has a smaller limit after a restart keeps what it uses, and gets no more") {
  CachedFixture before({tenant("a", 0, 0), tenant("b", 0, 0)});
  auto one = before.begin("a");
  REQUIRE(one->ledger->reserve(0, 600 * kMiB));
  NextLedger next(before.keeper, {tenant("a", 0, 200 * kMiB), tenant("b", 0, 0)});
  REQUIRE(next.adopt(before.ledger, *one));
  next.ledger.all_adopted();
  CHECK(next.free_bytes("a") == 0);
  CHECK(next.free_bytes("b") == 400 * kMiB);
}

}  // namespace
}  // namespace gpuwire::server
