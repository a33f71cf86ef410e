#include "server/gpu_scheduler/gpu_scheduler_part.hpp"

#include <map>
#include <random>

#include <doctest/doctest.h>

using namespace gpuwire::server;
using namespace std::chrono_literals;

namespace {

struct NoControl final : SessionControl {
  bool send(gpuwire::scheduler::SessionId, ipc::Message) override { return true; }
  void warn(gpuwire::scheduler::SessionId, const std::string&) override {}
  bool stop(gpuwire::scheduler::SessionId, const gpuwire::server::StopOrder&) override { return true; }
  void reconsider_waiting() override {}
};

// A scheduler of one GPU, with two tenants.
struct Fixture {
  explicit Fixture(bool scheduling) : part(io, control, {.scheduling = scheduling, .cores = 1, .policy = {}}) {
    part.tenants_changed(tenants);
  }
  SessionPage& begin(unsigned number, const std::string& tenant) {
    SessionRecord record;
    record.number = gpuwire::scheduler::SessionId(number);
    record.tenant = tenant;
    record.tenant_id = tenants.find(tenant)->id;
    record.devices = {0};
    SessionSpec spec;
    ipc::SessionDescriptors descriptors;
    REQUIRE(part.attach(record, spec, descriptors));
    records.push_back(record);
    return *pages.emplace_back(SharedPage<SessionPage>::map(std::move(descriptors.session_page)).value()).get();
  }

  boost::asio::io_context io;
  NoControl control;
  TenantDirectory tenants{{TenantConfiguration{.name = "red"}, TenantConfiguration{.name = "blue"}}};
  GpuSchedulerPart part;
  std::vector<SessionRecord> records;
  std::vector<SharedPage<SessionPage>> pages;
};

std::chrono::nanoseconds ns(uint64_t count) { return std::chrono::nanoseconds(int64_t(count)); }

}  // namespace

TEST_CASE(
    "whatever sessions say of their time, they are never billed for more than there was, and a tenant's sessions for "
    "what the tenant is") {
  // Work done before the settled time is charged once its begin is known.
  constexpr std::chrono::nanoseconds kLate = 5ms;
  constexpr int kSteps = 400;
  for (const bool scheduling : {true, false}) {
    for (unsigned seed = 1; seed <= 3; ++seed) {
      CAPTURE(scheduling);
      CAPTURE(seed);
      std::mt19937_64 random(seed);
      const PageTime begun = page_now();
      Fixture fixture(scheduling);
      std::vector<SessionPage*> pages;
      for (unsigned i = 0; i < 4; ++i) pages.push_back(&fixture.begin(i + 1, i % 2 == 0 ? "red" : "blue"));
      std::chrono::nanoseconds billed_before{};
      PageTime before = begun;
      for (int step = 0; step < kSteps; ++step) {
        for (SessionPage* page : pages) {
          // Busy all the time, like a session whose kernels the hardware slices with all others.
          page->busy_ns = uint64_t((page_now() - begun).count());
          if (random() % 4 != 0) continue;
          page->answered = page->attention.load();
          if (page->in_flight.exchange(uint32_t(random() % 2)) == 0) page->bursts.fetch_add(1);
          page->waiting = uint32_t(random() % 2);
          page->submissions.fetch_add(1);
          page->started = page->opening.load();
          page->first_start = page->last_end = page_now().count();
        }
        const PageTime asked = page_now();
        fixture.part.refresh();
        std::chrono::nanoseconds billed{};
        std::map<std::string, std::chrono::nanoseconds> of_tenant;
        for (const SessionRecord& record : fixture.records) {
          SessionMetrics figures;
          fixture.part.add(record, figures);
          billed += ns(figures.gpu_time_ns);
          of_tenant[record.tenant] += ns(figures.gpu_time_ns);
        }
        Snapshot snapshot;
        snapshot.devices = {{.index = 0}};
        for (const char* name : {"red", "blue"}) snapshot.tenants.push_back({.name = name, .devices = {{.device = 0}}});
        fixture.part.add(snapshot);
        const PageTime now = page_now();
        REQUIRE(billed <= now - begun);
        REQUIRE(billed - billed_before <= now - before + kLate);
        REQUIRE(ns(snapshot.devices[0].gpu_time_ns) <= now - begun);
        for (const TenantMetrics& tenant : snapshot.tenants)
          REQUIRE(of_tenant[tenant.name] <= ns(tenant.devices[0].gpu_time_ns));
        billed_before = billed;
        before = asked;
      }
      CHECK(billed_before > 0ns);
    }
  }
}
