#include "server/gpu_scheduler/gpu_scheduler.hpp"

#include <algorithm>
#include <atomic>
#include <random>
#include <thread>

#include <doctest/doctest.h>
#include <sys/eventfd.h>
#include <unistd.h>

#include "server/gate/page/futex.hpp"
#include "test/support/becomes.hpp"

using namespace gpuwire::server;
using namespace gpuwire::scheduler;
using gpuwire::test::becomes;
using gpuwire::test::kTimeout;
using namespace std::chrono_literals;

namespace {

constexpr DeviceIndex kDevice[] = {0};
// The age of adopted sessions, within which their pages' past times lie: an hour; less on a machine that has been up
// for less than two, because its clock begins with it.
constexpr int kWarned = 17, kWhole = 20;  // parts of the limit: past four fifths of it, and far from its end
PageTime long_life() { return std::min<std::chrono::nanoseconds>(1h, page_now() / 2); }

// A worker's end of a session, whose page the test writes.
struct Worker {
  SharedPage<SessionPage> page;
  OwnedDescriptor doorbell;

  explicit Worker(GpuScheduler::Ends ends) {
    auto mapped = SharedPage<SessionPage>::map(std::move(ends.page));
    REQUIRE(mapped.has_value());
    page = std::move(*mapped);
    doorbell = std::move(ends.doorbell);
  }
  GateWord gate() const { return {page->gate.load()}; }
  void ring() {
    page->rings.fetch_add(1);
    uint64_t one = 1;
    REQUIRE(::write(doorbell.get(), &one, sizeof one) == sizeof one);
  }
  // Answers like the in-flight tracker after a sample.
  void answer() { page->answered.store(page->attention.load()); }
  void work() {
    page->submissions.fetch_add(1);
    page->bursts.fetch_add(1);
    page->first_start = page_now().count();
    page->started = page->opening.load();
    page->in_flight = 1;
  }
  void drain() {
    page->last_end = page_now().count();
    page->in_flight = 0;
    answer();
    ring();
  }
  void knock() {
    page->waiting = 1;
    ring();
  }
};

struct GpuSchedulerFixture {
  std::mutex mutex;
  std::vector<std::string> warnings, ends;
  GpuScheduler scheduler{{.scheduling = true, .cores = 1, .policy = {}},
                         {.warn =
                              [this](SessionId, std::string text) {
                                std::lock_guard lock(mutex);
                                warnings.push_back(std::move(text));
                              },
                          .end =
                              [this](SessionId, StopOrder order) {
                                std::lock_guard lock(mutex);
                                ends.push_back(std::move(order.why));
                              }}};

  // Adds a session that began under another GPU scheduler. `prepare` writes its page.
  template <class Prepare>
  Worker session_since(PageTime began, unsigned number, unsigned tenant, Prepare prepare) {
    auto page = SharedPage<SessionPage>::create();
    REQUIRE(page);
    OwnedDescriptor doorbell(::eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK));
    Worker worker({OwnedDescriptor(::dup(page->descriptor())), OwnedDescriptor(::dup(doorbell.get()))});
    prepare(worker);
    REQUIRE(scheduler.adopt(SessionId(number), TenantId(tenant), kDevice,
                            {OwnedDescriptor(::dup(page->descriptor())), OwnedDescriptor(::dup(doorbell.get()))},
                            began));
    return worker;
  }
  Worker session(unsigned number, unsigned tenant, std::span<const DeviceIndex> devices = kDevice) {
    auto ends = scheduler.add(SessionId(number), TenantId(tenant), devices);
    REQUIRE(ends.has_value());
    return Worker(std::move(*ends));
  }
  size_t ended() {
    std::lock_guard lock(mutex);
    return ends.size();
  }
  size_t warned() {
    std::lock_guard lock(mutex);
    return warnings.size();
  }
};

}  // namespace

TEST_CASE_FIXTURE(GpuSchedulerFixture, "a session that is alone gets its gate opened wide") {
  Worker worker = session(1, 1);
  CHECK(becomes([&] { return worker.gate().unhindered(); }));
}

TEST_CASE_FIXTURE(GpuSchedulerFixture, "one of two gets the GPU, the other after it has drained") {
  Worker first = session(1, 1);
  CHECK(becomes([&] { return first.gate().unhindered(); }));
  first.work();
  Worker second = session(2, 2);
  CHECK(second.gate().closed());
  second.knock();
  // The first session's turn ends, or the second's begins at once: neither has the GPU while work of the other is in
  // flight.
  CHECK(becomes([&] { return first.gate().closed(); }));
  first.answer();
  CHECK(second.gate().closed());
  first.drain();
  CHECK(becomes([&] { return !second.gate().closed(); }));
  GpuSchedulerSnapshot snapshot = scheduler.snapshot();
  CHECK(snapshot.sessions.size() == 2);
  REQUIRE(snapshot.devices.size() == 1);
  uint64_t drains = 0;
  for (const auto& of_class : snapshot.devices[0].drains)
    for (uint64_t count : of_class.counts) drains += count;
  CHECK(drains >= 1);
}

TEST_CASE("a waiting session learns that its turn may be next while another's work on one of its GPUs drains") {
  constexpr DeviceIndex kBoth[] = {0, 1}, kOther[] = {1};
  // The wait for a drain is longer than the test.
  GpuScheduler scheduler({.scheduling = true, .cores = 1, .policy = {.drain_wait_max = 1h}}, {.warn = {}, .end = {}});
  auto session = [&](unsigned number, std::span<const DeviceIndex> devices) {
    return Worker(*scheduler.add(SessionId(number), TenantId(number), devices));
  };
  Worker first = session(1, kDevice);
  CHECK(becomes([&] { return first.gate().unhindered(); }));
  first.work();
  Worker second = session(2, kBoth), third = session(3, kOther);
  second.knock();
  CHECK(becomes([&] { return first.gate().closed(); }));
  first.answer();
  CHECK(becomes([&] { return second.gate().soon(); }));
  CHECK_FALSE(third.gate().soon());
  first.drain();
  CHECK(becomes([&] { return !second.gate().closed(); }));
}

TEST_CASE_FIXTURE(GpuSchedulerFixture, "a lease is free the moment its session has gone") {
  Worker first = session(1, 1);
  CHECK(becomes([&] { return first.gate().unhindered(); }));
  first.work();
  Worker second = session(2, 2);
  second.knock();
  scheduler.remove(SessionId(1));
  CHECK(becomes([&] { return !second.gate().closed(); }));
}

TEST_CASE("a session is removed without a wait for the thread's work, and a later query does not find it") {
  std::mutex held;
  std::atomic<bool> asked{false}, gone{false};
  // The thread holds its mutex while it reports an end.
  const auto tell = [&](SessionId, const StopOrder&) {
    asked = true;
    std::lock_guard lock(held);
  };
  GpuScheduler scheduler({.scheduling = false, .cores = 1, .policy = {}},
                         {.warn = [](SessionId, const std::string&) {}, .end = tell});
  scheduler.set_tenant(TenantId(1), {}, {.idle_time_max = 50ms});
  auto ends = scheduler.add(SessionId(1), TenantId(1), kDevice);
  REQUIRE(ends.has_value());
  Worker worker(std::move(*ends));
  worker.work();
  worker.drain();
  std::unique_lock holds(held);
  worker.page->idle_since = page_now().count();
  REQUIRE(becomes([&] { return asked.load(); }));
  std::thread other([&] {
    scheduler.remove(SessionId(1));
    gone = true;
  });
  CHECK(becomes([&] { return gone.load(); }));
  holds.unlock();
  other.join();
  CHECK(scheduler.snapshot().sessions.empty());
}

TEST_CASE_FIXTURE(GpuSchedulerFixture, "turns go round among tenants that always have work") {
  std::vector<Worker> workers;
  for (unsigned i = 1; i <= 3; ++i) workers.push_back(session(i, i));
  std::vector<int> turns(workers.size());
  auto until = std::chrono::steady_clock::now() + kTimeout;
  while (std::ranges::min(turns) < 3 && std::chrono::steady_clock::now() < until) {
    int open = 0;
    for (size_t i = 0; i < workers.size(); ++i) {
      Worker& worker = workers[i];
      if (worker.gate().closed()) {
        if (worker.page->in_flight != 0) worker.drain();
        if (worker.page->waiting == 0) worker.knock();
      } else if (worker.page->in_flight == 0) {
        worker.page->waiting = 0;
        worker.work();
        ++turns[i];
      }
      worker.answer();
      open += !worker.gate().closed();
    }
    std::this_thread::yield();
  }
  CHECK(std::ranges::min(turns) >= 3);
}

// The page's values are old when the test sets a limit with a warning, and then an exceeded one. So a delayed thread
// misses nothing.

TEST_CASE_FIXTURE(
    GpuSchedulerFixture,
    "a kernel over its tenant's limit is warned of and its session ended, and only what is counted can be") {
  const auto life = std::chrono::floor<std::chrono::milliseconds>(long_life());
  scheduler.set_tenant(TenantId(1), {}, {.kernel_time_max = life});
  Worker worker = session_since(page_now() - life, 1, 1, [](Worker&) {});
  worker.answer();
  CHECK(becomes([&] { return !worker.gate().closed(); }));
  CHECK(!worker.gate().unhindered());
  worker.work();
  worker.page->stuck_since = (page_now() - life * kWarned / kWhole).count();
  CHECK(warned() == 0);
  scheduler.set_tenant(TenantId(1), {}, {.kernel_time_max = life});
  REQUIRE(becomes([&] { return warned() == 1; }));
  CHECK(ended() == 0);
  CHECK(scheduler.snapshot().sessions[0].warning.find("kernel") != std::string::npos);
  scheduler.set_tenant(TenantId(1), {}, {.kernel_time_max = life / 2});
  REQUIRE(becomes([&] { return ended() == 1; }));
  CHECK(warned() == 1);
  CHECK(ends[0].find("kernel") != std::string::npos);
}

TEST_CASE_FIXTURE(GpuSchedulerFixture, "a session that does nothing is warned and ended at its tenant's limit") {
  const auto life = std::chrono::floor<std::chrono::milliseconds>(long_life());
  scheduler.set_tenant(TenantId(1), {}, {.idle_time_max = life});
  Worker worker = session_since(page_now() - life, 1, 1, [&](Worker& before) {
    before.page->idle_since = (page_now() - life * kWarned / kWhole).count();
  });
  // No work under the earlier scheduler is in flight any more.
  worker.answer();
  worker.ring();
  REQUIRE(becomes([&] { return !worker.gate().closed(); }));
  worker.answer();  // the opening requests a sample again, perhaps before the first answer
  scheduler.set_tenant(TenantId(1), {}, {.idle_time_max = life});
  REQUIRE(becomes([&] { return warned() == 1; }));
  CHECK(ended() == 0);
  scheduler.set_tenant(TenantId(1), {}, {.idle_time_max = life / 2});
  REQUIRE(becomes([&] { return ended() == 1; }));
  CHECK(warned() == 1);
  CHECK(ends[0].find("idle") != std::string::npos);
}

TEST_CASE_FIXTURE(GpuSchedulerFixture, "a limit that is set while a session runs holds for it") {
  Worker worker = session(1, 1);
  CHECK(becomes([&] { return worker.gate().unhindered(); }));
  scheduler.set_tenant(TenantId(1), {}, {.kernel_time_max = 1h});
  CHECK(becomes([&] { return !worker.gate().unhindered(); }));
  scheduler.set_tenant(TenantId(1), {}, {});
  CHECK(becomes([&] { return worker.gate().unhindered(); }));
}

TEST_CASE("without scheduling every gate stays open, and limits hold") {
  std::atomic<int> ended{0};
  GpuScheduler scheduler({.scheduling = false, .cores = 1, .policy = {}},
                         {.warn = [](SessionId, std::string) {}, .end = [&](SessionId, StopOrder) { ++ended; }});
  scheduler.set_tenant(TenantId(2), {}, {.idle_time_max = 50ms});
  auto one = scheduler.add(SessionId(1), TenantId(1), kDevice);
  auto two = scheduler.add(SessionId(2), TenantId(2), kDevice);
  REQUIRE(one.has_value());
  REQUIRE(two.has_value());
  Worker first(std::move(*one)), second(std::move(*two));
  CHECK(first.gate().unhindered());
  CHECK(second.gate().unhindered());
  first.work();
  second.work();
  second.drain();
  second.page->idle_since = page_now().count();
  CHECK(becomes([&] { return ended == 1; }));
  CHECK(first.gate().unhindered());
}

TEST_CASE_FIXTURE(GpuSchedulerFixture, "a worker that writes nonsense into its page keeps nobody from a turn") {
  Worker liar = session(1, 1);
  Worker honest = session(2, 2);
  std::mt19937_64 random(7);
  bool served = false;
  for (int i = 0; i < 20000 && !served; ++i) {
    liar.page->waiting = uint32_t(random());
    liar.page->in_flight = uint32_t(random() % 2);
    liar.page->first_start = int64_t(random());
    liar.page->last_end = int64_t(random());
    liar.page->busy_ns = random();
    liar.page->quiet_ns = random();
    liar.page->submissions = random();
    liar.page->bursts = random();
    liar.page->gate = 0;  // its own copy; the GPU scheduler keeps its decision in its own memory
    if (i % 64 == 0) liar.ring();
    if (honest.page->waiting == 0) honest.knock();
    served = !honest.gate().closed();
    std::this_thread::yield();
  }
  CHECK((served || becomes([&] { return !honest.gate().closed(); })));
}

TEST_CASE_FIXTURE(GpuSchedulerFixture, "a session whose page is damaged is ended once, with the reason") {
  Worker worker = session(1, 1);
  CHECK(becomes([&] { return worker.gate().unhindered(); }));
  worker.page->submissions = UINT64_MAX;
  worker.ring();
  CHECK(becomes([&] { return ended() == 1; }));
  worker.page->submissions = 0;
  for (int i = 0; i < 10; ++i) {
    worker.ring();
    scheduler.snapshot();
  }
  CHECK(ended() == 1);
  CHECK(ends[0].find("page") != std::string::npos);
}

TEST_CASE_FIXTURE(GpuSchedulerFixture, "a session that waits at its gate is shown with the reason") {
  Worker first = session(1, 1);
  CHECK(becomes([&] { return first.gate().unhindered(); }));
  first.work();
  Worker second = session(2, 2);
  second.knock();
  auto held = [&] {
    for (const auto& one : scheduler.snapshot().sessions) {
      if (one.id == SessionId(2)) return one.account;
    }
    return SessionAccount{};
  };
  CHECK(becomes([&] { return held().hold != Hold::none && held().held_by == SessionId(1); }));
}

TEST_CASE("servers of sessions that answer people stay awake after a request where there are cores for them") {
  GpuScheduler scheduler({.scheduling = true, .cores = 8, .policy = {}}, {.warn = {}, .end = {}});
  scheduler.set_tenant(TenantId(1), {.service_class = ServiceClass::interactive}, {});
  scheduler.set_tenant(TenantId(2), {.service_class = ServiceClass::batch}, {});
  auto session = [&](unsigned number, unsigned tenant) {
    return Worker(*scheduler.add(SessionId(number), TenantId(tenant), kDevice));
  };
  Worker first = session(1, 1), second = session(2, 1), batch = session(3, 2);
  CHECK(first.page->spin_us != 0);
  CHECK(second.page->spin_us != 0);
  CHECK(batch.page->spin_us == 0);
  Worker third = session(4, 1);  // more than a quarter of the cores
  CHECK(first.page->spin_us == 0);
  CHECK(third.page->spin_us == 0);
  scheduler.remove(SessionId(4));
  CHECK(becomes([&] { return first.page->spin_us != 0; }));
  scheduler.set_tenant(TenantId(1), {.service_class = ServiceClass::batch}, {});
  CHECK(first.page->spin_us == 0);
}

TEST_CASE_FIXTURE(GpuSchedulerFixture,
                  "a session that began under another GPU scheduler goes on: its counters are believed for the time "
                  "since then, and nobody pays for them") {
  const auto life = long_life();
  const auto busy = life * 5 / 6;
  const PageTime began = page_now() - life;
  Worker worker = session_since(began, 5, 1, [&](Worker& before) {
    // More than a session that begins now could have completed.
    before.page->submissions = before.page->completions = uint64_t(life / 9us);
    before.page->busy_ns = uint64_t(busy.count());
    before.page->charged_ns = uint64_t(busy.count() / 2);
    before.page->opening = 12;
    before.page->gate = 0;
  });
  CHECK(scheduler.began(SessionId(5)) == began);
  worker.answer();
  CHECK(becomes([&] { return worker.gate().unhindered(); }));
  CHECK(worker.page->opening.load() == 13);
  auto snapshot = scheduler.snapshot();
  REQUIRE(snapshot.sessions.size() == 1);
  // The earlier charge stays, and none of it is charged again.
  CHECK(snapshot.sessions[0].charged >= busy / 2);
  CHECK(snapshot.sessions[0].account.gpu_time < busy / 2);
  CHECK(ended() == 0);
}

TEST_CASE_FIXTURE(GpuSchedulerFixture, "the next GPU scheduler is told what a session was charged") {
  Worker worker = session(1, 1);
  CHECK(becomes([&] { return worker.gate().unhindered(); }));
  const PageTime begun = page_now();
  worker.page->in_flight = 1;
  CHECK(becomes([&] {
    worker.page->busy_ns = uint64_t((page_now() - begun).count());
    return worker.page->charged_ns != 0;
  }));
  CHECK(std::chrono::nanoseconds(worker.page->charged_ns.load()) <= page_now() - begun);
}

TEST_CASE_FIXTURE(GpuSchedulerFixture,
                  "a session that becomes a scavenger stands behind its own tenant's others, and what it was charged "
                  "stays its own and its tenant's") {
  scheduler.set_tenant(TenantId(1), {.service_class = ServiceClass::interactive}, {});
  Worker first = session(1, 1);
  CHECK(becomes([&] { return first.gate().unhindered(); }));
  auto charged = [&](unsigned number) {
    const GpuSchedulerSnapshot snapshot = scheduler.snapshot();
    for (const auto& one : snapshot.sessions)
      if (one.id == SessionId(number)) return one.charged;
    return std::chrono::nanoseconds(-1);
  };
  const PageTime begun = page_now();
  first.work();
  CHECK(becomes([&] {
    first.page->busy_ns = uint64_t((page_now() - begun).count());
    return charged(1) > 0ns;
  }));
  first.drain();
  const auto had = charged(1);
  CHECK(had > 0ns);
  scheduler.set_scavenger(SessionId(1), true);
  CHECK(charged(1) >= had);
  CHECK(scheduler.times(TenantId(1), 0).charged == charged(1));
  // Its tenant's other session precedes it.
  Worker second = session(2, 1);
  second.answer();
  first.answer();
  second.knock();
  CHECK(becomes([&] { return !second.gate().closed(); }));
  second.work();
  second.ring();
  first.knock();
  CHECK(becomes([&] {
    const GpuSchedulerSnapshot snapshot = scheduler.snapshot();
    return std::ranges::any_of(
        snapshot.sessions, [](const auto& one) { return one.id == SessionId(1) && one.account.hold == Hold::higher; });
  }));
  second.drain();
  second.page->waiting = 0;
  second.ring();
  scheduler.set_scavenger(SessionId(1), false);
  CHECK(becomes([&] {
    first.answer();
    first.ring();
    return !first.gate().closed();
  }));
  const auto one = charged(1), other = charged(2);
  CHECK(scheduler.times(TenantId(1), 0).charged >= one + other);
}

TEST_CASE_FIXTURE(GpuSchedulerFixture, "large copies share the link of their GPU, and not those of others") {
  constexpr DeviceIndex kOther[] = {1};
  std::vector<Worker> workers;
  for (unsigned i = 0; i < 4; ++i) workers.push_back(session(i + 1, i + 1, i < 2 ? std::span(kDevice) : kOther));
  // Acts like a program that always wants its GPU.
  auto go_on = [&](Worker& worker) {
    if (worker.gate().closed()) {
      if (worker.page->in_flight != 0) worker.drain();
      worker.knock();
      return;
    }
    worker.answer();
    worker.page->waiting = 0;
    worker.page->submissions.fetch_add(1);
    if (worker.page->in_flight == 0) worker.work();
  };
  CHECK(becomes([&] {
    for (Worker& worker : workers) go_on(worker);
    return std::ranges::all_of(
        workers, [](const Worker& worker) { return worker.page->copy_bytes_per_ms == kCopyBytesPerMs / 2; });
  }));
}

TEST_CASE_FIXTURE(GpuSchedulerFixture,
                  "a session whose page claims more than its time allows ends when it is adopted") {
  Worker worker =
      session_since(page_now() - 1h, 5, 1, [](Worker& before) { before.page->submissions = UINT64_MAX / 2; });
  CHECK(becomes([&] { return ended() == 1; }));
}
