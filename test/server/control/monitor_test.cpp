#include "server/control/monitor.hpp"

#include <cstdlib>
#include <filesystem>
#include <fstream>

#include <boost/asio/io_context.hpp>
#include <doctest/doctest.h>

#include "server/broker/keeper/kept_session.hpp"
#include "server/control/kept_totals.hpp"
#include "server/ipc/end_cause.hpp"

using namespace gpuwire::server;
using gpuwire::scheduler::SessionId;
namespace fs = std::filesystem;

namespace {

// A fake metrics source: every session has used a second of GPU time and 100 bytes in each direction.
class FakeSource final : public MetricsSource {
 public:
  void refresh() override { ++refreshed; }
  void add(const SessionRecord& session, SessionMetrics& figures) override {
    if (session.devices.empty()) return;
    figures.gpu_time_ns = 1'000'000'000;
    figures.bytes_in = figures.bytes_out = 100;
    figures.replies = 7;
    figures.devices.front().memory_peak_bytes = 4096;
  }
  void add(Snapshot& snapshot) override {
    for (TenantMetrics& tenant : snapshot.tenants) tenant.devices.at(0).gpu_time_ns = 5;
  }
  int refreshed = 0;
};

struct Fixture {
  Fixture() {
    char name[] = "/tmp/gpuwire-monitor-XXXXXX";
    folder = ::mkdtemp(name);
    audit_log = std::move(*AuditLog::open(folder / "audit"));
    monitor.add_source(source);
    std::vector<ServerDevice> devices{{.index = 0, .bytes = 1000, .name = "a GPU"},
                                      {.index = 1, .bytes = 1000, .name = "a GPU"}};
    monitor.devices_known(devices);
  }
  ~Fixture() { fs::remove_all(folder); }

  SessionId arrive(const std::string& tenant) {
    SessionRecord record{.tenant = tenant, .peer = "10.0.0.7:1", .security = "token", .program = "train"};
    if (const Tenant* known = tenants.find(tenant)) record.tenant_id = known->id;
    return registry.add(std::move(record)).number;
  }
  SessionId begin(const std::string& tenant) {
    SessionId session = arrive(tenant);
    registry.admitted(session, {0});
    registry.has_worker(session, 77);
    registry.begun(session, "train (process 5 on node)");
    return session;
  }
  void end(SessionId session, uint32_t cause) {
    monitor.ended(*registry.find(session));  // as one of the session's parts, before the registry's event
    registry.ended(session, cause, "goodbye");
  }
  TenantMetrics tenant(const std::string& name) {
    for (const TenantMetrics& one : monitor.snapshot().tenants)
      if (one.name == name) return one;
    return {};
  }
  std::vector<LogFields> audited() {
    std::vector<LogFields> lines;
    std::ifstream in(folder / "audit");
    for (std::string line; std::getline(in, line);) lines.push_back(LogFields::parse(line));
    return lines;
  }

  fs::path folder;
  AuditLog audit_log;
  // The clock stands still, so that a session's budget of events is not refilled.
  SessionRegistry registry{[] { return std::chrono::steady_clock::time_point(std::chrono::hours(1)); }};
  TenantDirectory tenants{{{.name = "bob", .memory = {.limit_bytes = 500}}, {.name = "alice", .weight = 2}}};
  Monitor monitor{registry, tenants, audit_log};
  FakeSource source;
};

}  // namespace

TEST_CASE_FIXTURE(Fixture, "a snapshot has every tenant with every device, by name, and the sessions by state") {
  begin("alice");
  SessionId waiting = arrive("bob");
  registry.queued(waiting, 1, 1, "a GPU");
  Snapshot snapshot = monitor.snapshot();
  REQUIRE(snapshot.tenants.size() == 2);
  CHECK(snapshot.tenants[0].name == "alice");
  CHECK(snapshot.tenants[0].sessions == std::map<std::string, uint64_t>{{"running", 1}});
  CHECK(snapshot.tenants[1].sessions == std::map<std::string, uint64_t>{{"queued", 1}});
  CHECK(snapshot.tenants[1].devices.size() == 2);
  CHECK(snapshot.tenants[1].devices[1].memory_limit_bytes == 500);
  CHECK(snapshot.tenants[0].devices[0].gpu_time_ns == 5);
  REQUIRE(snapshot.sessions.size() == 2);
  CHECK(snapshot.sessions[0].worker_pid == 77);
  CHECK(snapshot.sessions[1].place == 1);
  CHECK(snapshot.sessions[1].waits_for == "a GPU");
  CHECK(snapshot.devices[0].sessions == 1);
  CHECK(snapshot.devices[1].sessions == 0);
}

TEST_CASE_FIXTURE(Fixture, "sessions that have waited for a worker are counted once, whether they began or gave up") {
  SessionId begins = arrive("alice"), gives_up = arrive("alice");
  for (SessionId session : {begins, gives_up}) {
    registry.admitted(session, {0});
    registry.waits_for_worker(session);
    registry.waits_for_worker(session);
  }
  registry.has_worker(begins, 77);
  registry.begun(begins, "train");
  registry.refused(gives_up, RefusalCause::client_gone, "gone");
  end(begins, uint32_t(EndCause::finished));
  end(begin("alice"), uint32_t(EndCause::finished));  // a session that found a prewarmed worker
  CHECK(tenant("alice").worker_waits == 2);
  CHECK(tenant("bob").worker_waits == 0);
}

TEST_CASE_FIXTURE(Fixture, "an ended session's use stays with its tenant, and is in the audit line of its end") {
  SessionId first = begin("alice"), second = begin("alice");
  CHECK(tenant("alice").bytes_in == 200);
  end(first, uint32_t(EndCause::finished));
  end(second, SessionEvent::kDied);
  TenantMetrics alice = tenant("alice");
  CHECK(alice.bytes_in == 200);
  CHECK(alice.replies == 14);
  CHECK(alice.begun == 2);
  CHECK(alice.sessions.empty());
  CHECK(alice.ended == std::map<std::string, uint64_t>{{"finished", 1}, {"died", 1}});
  auto lines = audited();
  REQUIRE(lines.size() == 6);
  CHECK(lines[4]["event"] == "ended");
  CHECK(lines[4]["gpu_seconds"] == 1.0);
  CHECK(lines[4]["peak_memory_bytes"] == 4096);
  CHECK(lines[4]["identified_by"] == "token");
  CHECK(lines[5]["cause"] == "died");
}

TEST_CASE_FIXTURE(Fixture, "the figures of all sessions are taken once for those that end together, and not for each") {
  std::vector<SessionId> sessions;
  for (int i = 0; i < 100; ++i) sessions.push_back(begin("alice"));
  source.refreshed = 0;
  monitor.workers_reaped();
  for (SessionId session : sessions) end(session, uint32_t(EndCause::finished));
  CHECK(source.refreshed == 1);
  CHECK(tenant("alice").bytes_in == 100 * 100);
}

TEST_CASE_FIXTURE(Fixture, "a warning is audited, and the session's figures stay") {
  SessionId session = begin("alice");
  registry.warned(session, "the session has been idle for 8 s");
  registry.warned(SessionId(99), "nobody is warned");
  auto lines = audited();
  REQUIRE(lines.size() == 3);
  CHECK(lines[2]["event"] == "warned");
  CHECK(lines[2]["session"] == uint64_t(session));
  CHECK(lines[2]["tenant"] == "alice");
  CHECK(lines[2]["gpus"] == LogFields{0});
  CHECK(lines[2]["warning"] == "the session has been idle for 8 s");
  CHECK(tenant("alice").sessions == std::map<std::string, uint64_t>{{"running", 1}});
}

TEST_CASE_FIXTURE(Fixture,
                  "losses and refused resumptions that were not told are numbers in the audit line of the end") {
  SessionId session = begin("alice");
  for (unsigned i = 0; i < kSessionEventsAtOnce + 3; ++i) {
    registry.detached(session, std::chrono::seconds(60), "it was cut");
    registry.attached(session);
    registry.resume_refused(session, "not its client's");
  }
  end(session, uint32_t(EndCause::finished));
  auto lines = audited();
  CHECK(lines.size() == 3 + 3 * kSessionEventsAtOnce);
  CHECK(lines.back()["detached_untold"] == 3);
  CHECK(lines.back()["resume_refused_untold"] == 3);
  // The remaining grace when the line is written.
  CHECK(lines[2]["event"] == "detached");
  CHECK(lines[2]["seconds_left"] > 0.0);
  CHECK(lines[2]["seconds_left"] <= 60.0);
}

TEST_CASE_FIXTURE(Fixture, "refusals are counted by their reason; those of nobody's tenant stand apart") {
  registry.refused(arrive("bob"), RefusalCause::busy, "full");
  registry.refused(arrive("bob"), RefusalCause::client_gone, "it went away");
  registry.refused(arrive("bob"), RefusalCause::never_fits, "9 GPUs asked for, 2 there are");
  registry.refused(arrive("bob"), RefusalCause::no_device, "the server cannot open its device");
  registry.refused(arrive("mallory"), RefusalCause::unauthorised, "who?");
  monitor.login_refused("", "token", {{"peer", "10.0.0.9:1"}});
  monitor.login_refused("bob", "revoked", {{"peer", "10.0.0.9:2"}});
  CHECK(tenant("bob").refused ==
        std::map<std::string, uint64_t>{
            {"busy", 1}, {"client_gone", 1}, {"never_fits", 1}, {"no_device", 1}, {"revoked", 1}});
  CHECK(monitor.snapshot().refused == std::map<std::string, uint64_t>{{"token", 1}, {"unauthorised", 1}});
  auto lines = audited();
  REQUIRE(lines.size() == 7);
  CHECK(lines[2]["why"] == "never_fits");
  CHECK(lines[2]["reason"] == "9 GPUs asked for, 2 there are");
  CHECK(lines[5]["why"] == "token");
  CHECK(lines[5]["peer"] == "10.0.0.9:1");
}

TEST_CASE_FIXTURE(Fixture, "the wait of each admitted session is in its tenant's histogram") {
  begin("alice");
  begin("alice");
  CHECK(tenant("alice").queue_wait_s.total() == 2);
  CHECK(tenant("bob").queue_wait_s.total() == 0);
  CHECK_FALSE(tenant("bob").queue_wait_s.bounds.empty());
}

namespace {

// A keeper's entries, in this process.
struct Shelf final : EntryStore {
  void put(KeptEntry entry) override {
    CHECK(entry.awaited);
    texts[entry.name] = entry.text;
  }
  void note(const std::string& name, std::string text) override {
    REQUIRE(texts.contains(name));
    texts[name] = std::move(text);
  }
  void remove(const std::string& name) override { texts.erase(name); }
  std::vector<KeptEntry> entries() const {
    std::vector<KeptEntry> all;
    for (const auto& [name, text] : texts)
      all.push_back({.session = false, .awaited = true, .name = name, .text = text, .descriptors = {}});
    return all;
  }
  std::map<std::string, std::string> texts;
};

}  // namespace

TEST_CASE(
    "what was counted before a server was killed goes on being counted by the next one, and by the one after that") {
  boost::asio::io_context io;
  Shelf shelf;
  TenantMetrics shown;
  double since = 0;
  for (uint64_t servers = 1; servers <= 3; ++servers) {
    INFO("server ", servers);
    Fixture fixture;
    auto entries = shelf.entries();
    if (!entries.empty()) fixture.monitor.restore_totals(entries);
    CHECK(fixture.tenant("bob").begun == shown.begun);
    KeptTotals totals(io, fixture.registry, fixture.monitor, shelf);
    SessionId over = fixture.begin("bob");
    SessionId waits = fixture.arrive("bob");
    fixture.registry.waits_for_worker(waits);
    fixture.registry.refused(waits, RefusalCause::client_gone, "gone");
    fixture.registry.refused(fixture.arrive("bob"), RefusalCause::busy, "full");
    fixture.end(over, uint32_t(EndCause::finished));
    // A running session: its counters are in its page, where the next server reads them.
    fixture.begin("bob");
    Snapshot snapshot = fixture.monitor.snapshot();
    totals.note(snapshot);
    shown = fixture.tenant("bob");
    CHECK(shown.begun == 2 * servers);
    CHECK(shown.worker_waits == servers);
    CHECK(shown.ended["finished"] == servers);
    CHECK(shown.refused["busy"] == servers);
    CHECK(shown.queue_wait_s.total() == 2 * servers);
    CHECK(shown.bytes_in == 100 * servers + 100);
    CHECK(shown.devices[0].gpu_time_ns == 5 * servers);
    shown.bytes_in -= 100;
    // The start of the first server, from which the counted time is a share.
    if (servers == 1) since = snapshot.server.counted_since_unix_s;
    CHECK(since > 0);
    CHECK(snapshot.server.counted_since_unix_s == since);
  }
  // One entry for each tenant, and one for the start of counting; an orderly end leaves none.
  CHECK(shelf.texts.size() == 3);
  Fixture fixture;
  KeptTotals totals(io, fixture.registry, fixture.monitor, shelf);
  shelf.texts.clear();
  fixture.begin("alice");
  totals.note(fixture.monitor.snapshot());
  CHECK(shelf.texts.size() == 3);
  totals.forget();
  CHECK(shelf.texts.empty());
}

TEST_CASE("totals of times that cannot be read are left out, and others are not") {
  Fixture fixture;
  std::vector<KeptEntry> entries;
  for (const char* text : {"", "{", "[1]", R"({"tenants":[{"name":7}]})", R"({"tenants":[{"name":"bob","begun":4}]})"})
    entries.push_back({.session = false, .name = kept_total_name("tenant/bob"), .text = text, .descriptors = {}});
  fixture.monitor.restore_totals(entries);
  CHECK(fixture.tenant("bob").begun == 4);
}
