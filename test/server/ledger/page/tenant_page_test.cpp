// The page in which sessions of one tenant reserve memory: racing threads and processes, lowered allowances, killed
// processes.
#include <csignal>
#include <random>
#include <thread>
#include <vector>

#include <doctest/doctest.h>
#include <fcntl.h>
#include <sys/mman.h>
#include <sys/wait.h>
#include <unistd.h>

#include "server/ledger/worker/session_ledger.hpp"
#include "server/ledger/page/tenant_page.hpp"

namespace gpuwire::server {
namespace {

constexpr uint64_t kMiB = 1u << 20;

SharedPage<TenantPage> make_page(uint32_t slots, uint64_t allowance, uint64_t limit) {
  auto page = SharedPage<TenantPage>::create();
  REQUIRE(page);
  (*page)->slots = slots;
  (*page)->column[0].allowance = allowance;
  (*page)->column[0].limit = limit;
  return std::move(*page);
}

// A broker that raises by exactly the missing bytes, up to a bound.
class Source final : public AllowanceSource {
 public:
  Source(TenantPage& page, uint64_t most) : page_(page), most_(most) {}
  bool ask(uint32_t column, uint64_t bytes) override {
    ++asks;
    uint64_t wanted = held_by_all(page_, column) + bytes;
    if (wanted > most_) return false;
    page_.column[column].allowance = wanted;
    return true;
  }
  bool ask_ahead(uint32_t column, uint64_t bytes) override {
    ++asks_ahead;
    return ask(column, bytes);
  }
  unsigned asks = 0, asks_ahead = 0;

 private:
  TenantPage& page_;
  const uint64_t most_;
};

TEST_CASE("sessions together hold what the allowance says, and no byte more") {
  SharedPage<TenantPage> page = make_page(3, 100, 1000);
  SessionLedger one(*page, 1, nullptr), two(*page, 2, nullptr);
  CHECK(one.reserve(0, 60));
  CHECK(two.reserve(0, 40));
  CHECK_FALSE(one.reserve(0, 1));
  two.give_back(0, 1);
  CHECK_FALSE(one.reserve(0, 2));
  CHECK(one.reserve(0, 1));
  CHECK(one.used(0) == 61);
  CHECK(used_by_all(*page, 0) == 100);
  one.give_back(0, 1000);
  CHECK(one.used(0) == 0);
  CHECK_FALSE(one.reserve(0, UINT64_MAX));
  CHECK_FALSE(one.reserve(kPageColumns, 1));
}

TEST_CASE(
    "within the grant nobody is asked, and an eighth of the limit is left, but for the session's own reservation") {
  SharedPage<TenantPage> page = make_page(3, 100, 160);
  page->column[0].reserved[2] = 30;
  Source source(*page, 1000);
  SessionLedger session(*page, 1, &source), owner(*page, 2, &source);
  {
    const SessionLedger::Ahead within(SessionLedger::Grant::as_it_is);
    CHECK(session.reserve(0, 70));
    CHECK_FALSE(session.reserve(0, 1));  // 30 are the owner's
    CHECK(owner.reserve(0, 30));
    CHECK_FALSE(owner.reserve(0, 1));
    CHECK(source.asks == 0);
    page->column[0].allowance = 160;
    CHECK(session.reserve(0, 40));  // 140 of 160
    CHECK_FALSE(session.reserve(0, 1));
  }
  CHECK(session.reserve(0, 20));
  CHECK(session.reserve(0, 0));
  CHECK(source.asks == 0);
}

TEST_CASE(
    "ahead of a program that begins the grant grows to all but an eighth of the limit, by asking for what is free") {
  SharedPage<TenantPage> page = make_page(2, 10, 160);
  Source source(*page, 130);
  SessionLedger session(*page, 1, &source);
  {
    const SessionLedger::Ahead beyond(SessionLedger::Grant::may_grow);
    CHECK(session.reserve(0, 10));
    CHECK(source.asks == 0);
    CHECK(session.reserve(0, 110));
    CHECK(source.asks_ahead == 1);
    CHECK_FALSE(session.reserve(0, 20));  // the broker does not have it
    CHECK(source.asks_ahead == 2);
    CHECK_FALSE(session.reserve(0, 21));  // 141 of 160
    CHECK(source.asks_ahead == 2);
  }
  SessionLedger alone(*page, 1, nullptr);
  const SessionLedger::Ahead beyond(SessionLedger::Grant::may_grow);
  CHECK_FALSE(alone.reserve(0, 15));
}

TEST_CASE("until when clients may hold memory ahead of their programs is told by their slots, and bounded") {
  SharedPage<TenantPage> page = make_page(3, 100, 100);
  const auto most = uint32_t(kAheadHeld.count());
  CHECK(held_ahead(*page, 1, 1000).count() == 0);
  page->slot[2].ahead_until_s = 1000 + most - 1;
  CHECK(held_ahead(*page, 1, 1000).count() == most - 1);
  CHECK(held_ahead(*page, 1, 1000 + most - 1).count() == 0);
  CHECK(held_ahead(*page, 1, 5000).count() == 0);
  CHECK(held_ahead(*page, 2, 1000).count() == 0);  // its own
  page->slot[3].ahead_until_s = 2000;              // no slot of the page's
  CHECK(held_ahead(*page, 1, 1500).count() == 0);
  page->slot[2].ahead_until_s = UINT32_MAX;
  CHECK(held_ahead(*page, 1, 1000) == kAheadHeld);
  SessionLedger(*page, 2, nullptr).note_held_ahead();
  CHECK(held_ahead(*page, 1, page_seconds()) <= kAheadHeld);
  CHECK(page->slot[2].ahead_until_s >= page_seconds() - 60);
  clear_slot(*page, 2);
  CHECK(page->slot[2].ahead_until_s == 0);
}

TEST_CASE("an allowance that is used up is raised by asking, up to the limit, and the limit is not asked about") {
  SharedPage<TenantPage> page = make_page(2, 0, 100);
  Source source(*page, 80);
  SessionLedger session(*page, 1, &source);
  CHECK(session.reserve(0, 70));
  CHECK(source.asks == 1);
  CHECK_FALSE(session.reserve(0, 20));
  CHECK(source.asks == 2);
  CHECK_FALSE(session.reserve(0, 31));
  CHECK(source.asks == 2);
  CHECK(session.reserve(0, 10));
}

TEST_CASE("at the limit, memory that another session's client keeps for a moment is waited for, and no other") {
  constexpr std::chrono::minutes kForTheTest{2};
  SharedPage<TenantPage> page = make_page(4, 100, 100);
  SessionLedger one(*page, 1, nullptr, kForTheTest), two(*page, 2, nullptr, kForTheTest),
      three(*page, 3, nullptr, kForTheTest);
  REQUIRE(one.reserve(0, 60));
  CHECK_FALSE(two.reserve(0, 50));
  three.note_keeping(true);  // of another device
  CHECK_FALSE(two.reserve(0, 50));
  one.note_keeping(true);
  CHECK_FALSE(two.reserve(0, 101));
  two.note_keeping(true);  // its own client releases first, and asks again
  CHECK_FALSE(two.reserve(0, 50));
  two.note_keeping(false);
  std::thread client([&] { one.give_back(0, 20); });
  CHECK(two.reserve(0, 50));
  client.join();
  std::thread ends([&] { one.note_keeping(false); });
  CHECK_FALSE(two.reserve(0, 50));
  ends.join();
}

TEST_CASE("an allowance is lowered to what is in use, never below") {
  SharedPage<TenantPage> page = make_page(2, 100, 100);
  SessionLedger session(*page, 1, nullptr);
  REQUIRE(session.reserve(0, 30));
  CHECK(lower_allowance(*page, 0, 50, {}) == 50);
  CHECK(lower_allowance(*page, 0, 10, {}) == 30);
  CHECK(lower_allowance(*page, 0, 90, {}) == 30);
  // An impossible value raises nothing.
  page->column[0].used[1] = UINT64_MAX;
  CHECK(lower_allowance(*page, 0, 10, {}) == 30);
}

TEST_CASE("a session's reservation is its own, and counts as held by it until it uses more") {
  SharedPage<TenantPage> page = make_page(3, 100, 100);
  page->column[0].reserved[1] = 40;
  SessionLedger owner(*page, 1, nullptr), other(*page, 2, nullptr);
  CHECK(held_by_all(*page, 0) == 40);
  CHECK(owner.available(0) == 100);
  CHECK(other.available(0) == 60);
  CHECK_FALSE(other.reserve(0, 61));
  CHECK(other.reserve(0, 60));
  CHECK(other.available(0) == 0);
  CHECK(owner.available(0) == 40);
  CHECK(owner.reserve(0, 30));
  CHECK(held_by_all(*page, 0) == 100);
  CHECK_FALSE(owner.reserve(0, 11));
  other.give_back(0, 5);
  CHECK(owner.reserve(0, 15));  // ten of its reservation, five of the common rest
  CHECK(held_by_all(*page, 0) == 100);
  owner.give_back(0, 20);
  CHECK(other.available(0) == 5);
  CHECK_FALSE(other.reserve(0, 6));
  CHECK(page->column[0].peak[1] == 45);
}

TEST_CASE("a reservation holds when the limit is lowered afterwards, and gives nothing beyond") {
  SharedPage<TenantPage> page = make_page(2, 100, 100);
  page->column[0].reserved[1] = 40;
  SessionLedger owner(*page, 1, nullptr);
  page->column[0].limit = 10;
  CHECK(owner.available(0) == 40);
  CHECK(owner.reserve(0, 40));
  CHECK_FALSE(owner.reserve(0, 1));
}

TEST_CASE("a reservation that another worker writes over the page's gives nothing to who is there already") {
  SharedPage<TenantPage> page = make_page(3, 100, 100);
  SessionLedger session(*page, 1, nullptr);
  page->column[0].reserved[1] = UINT64_MAX;
  CHECK(session.available(0) == 0);
  CHECK_FALSE(session.reserve(0, 101));
  page->column[0].reserved[1] = 0;
  page->column[0].reserved[2] = UINT64_MAX;
  CHECK_FALSE(session.reserve(0, 1));
  // The broker uses its own records.
  CHECK(held_by_all(*page, 0, {}) == 0);
  ReservedBytes noted{};
  noted[200] = 30;
  page->slots = 0;
  CHECK(held_by_all(*page, 0, noted) == 30);
  CHECK(lower_allowance(*page, 0, 10, noted) == 30);
}

TEST_CASE("an allowance is raised by what a session wants beyond its reservation") {
  SharedPage<TenantPage> page = make_page(2, 50, 100);
  page->column[0].reserved[1] = 50;
  Source source(*page, 80);
  SessionLedger session(*page, 1, &source);
  CHECK(session.reserve(0, 20));
  CHECK(source.asks == 0);
  CHECK(session.reserve(0, 60));
  CHECK(source.asks == 1);
  CHECK_FALSE(session.reserve(0, 1));
}

TEST_CASE("threads that race never hold more than an allowance that is lowered and raised meanwhile") {
  constexpr uint64_t kLimit = 64 * kMiB;
  constexpr unsigned kThreads = 4, kRounds = 20000;
  SharedPage<TenantPage> page = make_page(kThreads + 1, kLimit, kLimit);
  std::atomic<uint64_t> driver{0};  // memory really held: never more than reserved
  std::atomic<uint64_t> most{kLimit};
  std::atomic<unsigned> running{kThreads}, exceeded{0};
  std::vector<std::thread> threads;
  for (uint32_t slot = 1; slot <= kThreads; ++slot) {
    threads.emplace_back([&, slot] {
      std::mt19937_64 random(slot);
      SessionLedger session(*page, slot, nullptr);
      std::vector<uint64_t> held;
      for (unsigned round = 0; round < kRounds; ++round) {
        uint64_t bytes = 1 + random() % (16 * kMiB);
        if (session.reserve(0, bytes)) {
          if (driver.fetch_add(bytes) + bytes > most.load()) ++exceeded;
          held.push_back(bytes);
        }
        if (held.size() > 6 || random() % 3 == 0) {
          for (uint64_t one : held) {
            driver.fetch_sub(one);
            session.give_back(0, one);
          }
          held.clear();
        }
      }
      for (uint64_t one : held) {
        driver.fetch_sub(one);
        session.give_back(0, one);
      }
      --running;
    });
  }
  std::mt19937_64 random(99);
  while (running.load()) {
    uint64_t target = random() % kLimit;
    uint64_t lowered = lower_allowance(*page, 0, target, {});
    // Until the next raise, no more may be held.
    for (unsigned poll = 0; poll < 20; ++poll) {
      if (driver.load() > lowered) ++exceeded;
    }
    page->column[0].allowance = kLimit;
  }
  for (std::thread& thread : threads) thread.join();
  CHECK(exceeded == 0);
  CHECK(used_by_all(*page, 0) == 0);
}

TEST_CASE("workers killed at any moment leave nothing behind, and the others go on") {
  constexpr unsigned kWorkers = 3, kKills = 40;
  SharedPage<TenantPage> page = make_page(kWorkers + 2, 64 * kMiB, 64 * kMiB);
  void* memory = ::mmap(nullptr, 4096, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
  REQUIRE(memory != MAP_FAILED);
  auto* rounds = static_cast<std::atomic<uint64_t>*>(memory);
  auto start = [&](uint32_t slot) {
    pid_t pid = ::fork();
    if (pid != 0) return pid;
    SessionLedger session(*page, slot, nullptr);
    for (uint64_t bytes = slot;; bytes = bytes * 31 % 9973 + 1) {
      if (session.reserve(0, bytes * 1024)) {
        if (bytes % 7) session.give_back(0, bytes * 1024);
      } else {
        session.give_back(0, session.used(0));
      }
      rounds[slot].fetch_add(1);
    }
  };
  std::vector<pid_t> workers{0};
  for (uint32_t slot = 1; slot <= kWorkers; ++slot) workers.push_back(start(slot));
  auto end = [&](uint32_t slot) {
    ::kill(workers[slot], SIGKILL);
    REQUIRE(::waitpid(workers[slot], nullptr, 0) == workers[slot]);
    clear_slot(*page, slot);
    CHECK(page->column[0].used[slot] == 0);
  };
  for (unsigned kill = 0; kill < kKills; ++kill) {
    uint32_t slot = 1 + kill % kWorkers;
    uint64_t before = rounds[slot].load();
    while (rounds[slot].load() < before + 50) ::sched_yield();
    end(slot);
    workers[slot] = start(slot);
  }
  for (uint32_t slot = 1; slot <= kWorkers; ++slot) end(slot);
  CHECK(page->turn == 0);
  CHECK(used_by_all(*page, 0) == 0);
  SessionLedger session(*page, kWorkers + 1, nullptr);
  CHECK(session.reserve(0, 64 * kMiB));
  ::munmap(memory, 4096);
}

TEST_CASE("a session's shared memory stays charged when it has ended") {
  SharedPage<TenantPage> page = make_page(3, 100, 100);
  SessionLedger session(*page, 1, nullptr);
  REQUIRE(session.reserve(0, 50));
  session.share(0, 20);
  clear_slot(*page, 1);
  CHECK(page->column[0].used[kLeftSlot] == 20);
  CHECK(used_by_all(*page, 0) == 20);
}

TEST_CASE("memory that ended sessions have left is a figure like all others, whatever was written there") {
  SharedPage<TenantPage> page = make_page(3, 100, 100);
  page->column[0].used[kLeftSlot] = UINT64_MAX;
  page->column[0].used[1] = 50;
  page->column[0].shared[1] = 20;
  clear_slot(*page, 1);
  CHECK(page->column[0].used[kLeftSlot] == kPageBytesMax);
}

TEST_CASE("a page has the size and the version that both ends know, and cannot be cut short") {
  auto page = SharedPage<TenantPage>::create();
  REQUIRE(page);
  CHECK(::ftruncate(page->descriptor(), 4096) != 0);
  {
    auto same = SharedPage<TenantPage>::map(OwnedDescriptor(::dup(page->descriptor())));
    REQUIRE(same);
    (*page)->column[5].used[1] = 7;
    CHECK((*same)->column[5].used[1] == 7);
  }
  (*page)->head.version = TenantPage::kVersion + 1;
  CHECK_FALSE(SharedPage<TenantPage>::map(OwnedDescriptor(::dup(page->descriptor()))));
  OwnedDescriptor other(::memfd_create("other", MFD_CLOEXEC));
  CHECK_FALSE(SharedPage<TenantPage>::map(std::move(other)));
}

}  // namespace
}  // namespace gpuwire::server
