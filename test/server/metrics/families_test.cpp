#include "server/metrics/families.hpp"

#include <fstream>
#include <regex>
#include <set>
#include <sstream>

#include <doctest/doctest.h>

#include "test/server/control/sample.hpp"

using namespace gpuwire::server;

namespace {

bool has_line(const std::string& text, const std::string& line) {
  return ("\n" + text).find("\n" + line + "\n") != std::string::npos;
}

}  // namespace

TEST_CASE("The metrics of a busy server are the figures of its snapshot") {
  Snapshot snapshot = sample_snapshot();
  for (const bool renewed : {false, true})
    snapshot.server.certificates.push_back({.of = "tenant",
                                            .tenant = "c",
                                            .expires_unix_s = renewed ? 4.0 : 5.0,
                                            .warning = "",
                                            .user = "a",
                                            .kind = "token",
                                            .renewed = renewed});
  std::string text = metrics_text(&snapshot);
  CHECK(text.find(R"(kind="token"} 4)") == std::string::npos);  // the series has the newest credential only
  for (const char* line : {"gpuwire_up 1",
                           R"(gpuwire_gpu_seconds_total{tenant="alice",gpu="0"} 6)",
                           R"(gpuwire_gpu_seconds_total{tenant="bob",gpu="0"} 3)",
                           R"(gpuwire_device_gpu_seconds_total{gpu="0"} 9)",
                           R"(gpuwire_device_system_seconds_total{gpu="0"} 0.1)",
                           R"(gpuwire_device_lease_hand_overs_total{gpu="0"} 120)",
                           R"(gpuwire_device_regime_seconds_total{gpu="0",regime="lease"} 4)",
                           R"(gpuwire_certificate_expires_seconds{of="server",tenant="",user="",kind=""} 1790000000)",
                           R"(gpuwire_certificate_expires_seconds{of="tenant",tenant="c",user="a",kind="token"} 5)",
                           R"(gpuwire_device_drained{gpu="0"} 0)",
                           R"(gpuwire_device_prewarmed_workers{gpu="0"} 3)",
                           R"(gpuwire_device_prewarmed_memory_bytes{gpu="0"} 1610612736)",
                           R"(gpuwire_worker_waits_total{tenant="alice"} 2)",
                           R"(gpuwire_worker_waits_total{tenant="bob"} 0)",
                           R"(gpuwire_sessions{tenant="bob",state="queued"} 1)",
                           R"(gpuwire_sessions{tenant="alice",state="queued"} 0)",
                           R"(gpuwire_queue_length{tenant="bob"} 1)",
                           R"(gpuwire_sessions_ended_total{tenant="alice",cause="finished"} 2)",
                           R"(gpuwire_logins_refused_total{tenant="alice",reason="never_fits"} 1)",
                           R"(gpuwire_logins_refused_total{tenant="",reason="token"} 4)",
                           R"(gpuwire_received_bytes_total{tenant="alice"} 5000000)",
                           R"(gpuwire_memory_limit_bytes{tenant="alice",gpu="0"} 42949672960)",
                           R"(gpuwire_queue_wait_seconds_count{tenant="alice"} 3)",
                           R"(gpuwire_queue_wait_seconds_bucket{tenant="alice",le="1"} 3)",
                           R"(gpuwire_queue_wait_seconds_bucket{tenant="alice",le="+Inf"} 3)",
                           R"(gpuwire_drain_seconds_count{gpu="0",class="batch"} 11)",
                           R"(gpuwire_drain_seconds_bucket{gpu="0",class="batch",le="0.0001"} 7)",
                           "# TYPE gpuwire_gpu_seconds_total counter",
                           "# TYPE gpuwire_drain_seconds histogram"})
    CHECK_MESSAGE(has_line(text, line), line);
}

TEST_CASE("The time left to a tenant's detached sessions is that of the first to end, and 0 without one") {
  Snapshot snapshot = sample_snapshot();
  auto shows = [&](const char* line) { return has_line(metrics_text(&snapshot), line); };
  CHECK(shows(R"(gpuwire_detached_seconds_left{tenant="alice"} 0)"));
  for (double left_s : {250.5, 41.25, 100.0}) {
    SessionMetrics detached = snapshot.sessions.front();
    detached.state = "detached";
    detached.detached_left_s = left_s;
    snapshot.sessions.push_back(detached);
  }
  CHECK(shows(R"(gpuwire_detached_seconds_left{tenant="alice"} 41.25)"));
  CHECK(shows(R"(gpuwire_detached_seconds_left{tenant="bob"} 0)"));
}

TEST_CASE("The tenants' GPU time adds up to the devices'") {
  Snapshot snapshot = sample_snapshot();
  double tenants = 0, devices = 0;
  for (const auto& family : metric_families(&snapshot))
    for (const auto& metric : family.metric) {
      if (family.name == "gpuwire_gpu_seconds_total") tenants += metric.counter.value;
      if (family.name == "gpuwire_device_gpu_seconds_total") devices += metric.counter.value;
    }
  CHECK(tenants == doctest::Approx(devices));
}

TEST_CASE("Every metric has a name of its own, a help text and a unit in the name of a time or a size") {
  Snapshot snapshot = sample_snapshot();
  std::set<std::string> names;
  for (const auto& family : metric_families(&snapshot)) {
    CHECK_MESSAGE(names.insert(family.name).second, family.name);
    CHECK_FALSE(family.help.empty());
    CHECK(family.name.starts_with("gpuwire_"));
    CHECK((family.type == prometheus::MetricType::Counter) == family.name.ends_with("_total"));
  }
}

namespace {

Snapshot snapshot_with_budgets() {
  constexpr uint64_t kSecondNs = 1'000'000'000;
  Snapshot snapshot = sample_snapshot();
  TenantMetrics& alice = snapshot.tenants[0];
  alice.budget_ns = 7200 * kSecondNs;
  alice.budget_used_ns = 60 * kSecondNs;
  alice.users = {{.name = "ursula", .budget_ns = 50 * kSecondNs, .budget_used_ns = 50 * kSecondNs},
                 {.name = "victor", .budget_ns = 50 * kSecondNs, .budget_used_ns = 10 * kSecondNs},
                 {.name = "wanda"}};
  return snapshot;
}

}  // namespace

TEST_CASE("docs/monitoring.md names every metric, and no other") {
  std::ifstream file("docs/monitoring.md");
  REQUIRE(file);
  std::stringstream text;
  text << file.rdbuf();
  std::string documentation = text.str();
  std::set<std::string> documented, written;
  std::regex name("^\\| `(gpuwire_[a-z_]+)`", std::regex::multiline);
  for (std::sregex_iterator match(documentation.begin(), documentation.end(), name), end; match != end; ++match)
    documented.insert((*match)[1]);
  Snapshot snapshot = snapshot_with_budgets();
  for (const auto& family : metric_families(&snapshot)) written.insert(family.name);
  CHECK(documented == written);
}

TEST_CASE("A tenant's budget and how many of its users are over their own are metrics, and users are no labels") {
  Snapshot snapshot = snapshot_with_budgets();
  const std::string text = metrics_text(&snapshot);
  CHECK(has_line(text, R"(gpuwire_tenant_budget_seconds{tenant="alice"} 7200)"));
  CHECK(has_line(text, R"(gpuwire_tenant_budget_used_seconds{tenant="alice"} 60)"));
  CHECK(has_line(text, R"(gpuwire_tenant_users_over_budget{tenant="alice"} 1)"));
  for (const char* no : {"gpuwire_tenant_budget_seconds{tenant=\"bob\"", "ursula", "victor", "wanda"})
    CHECK_MESSAGE(text.find(no) == std::string::npos, no);
}

TEST_CASE("A server that does not answer is told as such") {
  std::string text = metrics_text(nullptr);
  CHECK(has_line(text, "gpuwire_up 0"));
  CHECK(text.find("gpuwire_gpu_seconds_total") == std::string::npos);
}

TEST_CASE("Quotes and line ends in a name do not break the format") {
  Snapshot snapshot;
  snapshot.devices.push_back({.index = 0, .name = "a\"b\\c\nd"});
  std::string text = metrics_text(&snapshot);
  CHECK(has_line(text, R"(gpuwire_device_info{gpu="0",name="a\"b\\c\\x0ad"} 1)"));
}
