// Tests of the broker's budgets: classes that fall, and programs that wait.
#include <doctest/doctest.h>

#include <cstdlib>
#include <filesystem>
#include <map>
#include <memory>
#include <string>
#include <vector>

#include <boost/asio/io_context.hpp>

#include "server/budget/budgets.hpp"

using namespace gpuwire::server;
using namespace std::chrono_literals;
using gpuwire::scheduler::SessionId;
namespace fs = std::filesystem;

namespace {

const auto kNovember = std::chrono::system_clock::from_time_t(1'794'600'000);  // 2026-11-13
constexpr uint64_t kHourMs = 3'600'000;

struct Server {
  fs::path folder;
  std::chrono::system_clock::time_point now = kNovember;
  std::map<SessionId, std::chrono::nanoseconds> charged;
  std::map<SessionId, bool> scavengers;
  unsigned changes = 0;
  boost::asio::io_context io;
  SessionRegistry registry;
  TenantDirectory tenants{{}};
  std::unique_ptr<Budgets> budgets;

  explicit Server(std::vector<TenantConfiguration> settings) {
    std::string name = (fs::temp_directory_path() / "gpuwire-budgets-XXXXXX").string();
    REQUIRE(::mkdtemp(name.data()));
    folder = name;
    start();
    configure(std::move(settings));
  }
  ~Server() {
    budgets.reset();
    fs::remove_all(folder);
  }
  void start() {
    budgets = std::make_unique<Budgets>(
        io, registry, folder / "budgets",
        Budgets::Deps{.charged = [this](SessionId session) -> std::optional<std::chrono::nanoseconds> {
                        auto found = charged.find(session);
                        return found == charged.end() ? std::nullopt : std::optional(found->second);
                      },
                      .set_scavenger = [this](SessionId session, bool is) { scavengers[session] = is; },
                      .changed = [this] { ++changes; },
                      .now = [this] { return now; }});
  }
  // Replaces a killed server by one that adopts its sessions.
  void restart() {
    budgets.reset();
    start();
    budgets->tenants_changed(tenants);
    KeptEntry none;
    for (const auto& [number, session] : registry.all()) REQUIRE(budgets->adopt(session, {}, none).has_value());
    budgets->all_adopted();
  }
  void configure(std::vector<TenantConfiguration> settings) {
    tenants.replace(std::move(settings));
    budgets->tenants_changed(tenants);
  }
  SessionId begin(const std::string& tenant, const std::string& user) {
    const SessionId number = registry.add({.tenant = tenant, .user = user}).number;
    charged[number] = 0ns;
    SessionSpec spec;
    ipc::SessionDescriptors descriptors;
    REQUIRE(budgets->attach(*registry.find(number), spec, descriptors).has_value());
    return number;
  }
  void end(SessionId session) {
    budgets->ended(*registry.find(session));
    charged.erase(session);
    registry.ended(session, 0, "goodbye");
  }
  void work(SessionId session, std::chrono::nanoseconds more) {
    charged[session] += more;
    budgets->poll();
    io.poll();
  }
  bool falls(SessionId session) { return scavengers.contains(session) && scavengers[session]; }
  std::string held(SessionId session) { return budgets->why_held(*registry.find(session)); }
  double hours(const std::string& user = {}) {
    Snapshot snapshot{.tenants = {{.name = "course"}}};
    budgets->add(snapshot);
    const TenantMetrics& tenant = snapshot.tenants.front();
    if (user.empty()) return double(tenant.budget_used_ns) / 3600e9;
    for (const UserMetrics& one : tenant.users)
      if (one.name == user) return double(one.budget_used_ns) / 3600e9;
    return 0;
  }
};

TenantConfiguration course(uint64_t hours, uint64_t user_hours, bool hard = false) {
  return {.name = "course",
          .budget = {.ms = hours * kHourMs, .hard = hard},
          .each_user = {.sessions_max = 0, .budget = {.ms = user_hours * kHourMs, .hard = hard}}};
}

}  // namespace

TEST_CASE("a user who has used up the budget falls alone, and the tenant's falls everybody of it") {
  Server server({course(5, 2), {.name = "lab"}});
  const SessionId anna = server.begin("course", "anna"), ben = server.begin("course", "ben"),
                  lab = server.begin("lab", "");
  server.work(anna, 1h);
  CHECK_FALSE(server.falls(anna));
  server.work(anna, 1h);
  CHECK(server.falls(anna));
  CHECK_FALSE(server.falls(ben));
  CHECK(server.changes == 1);
  CHECK(server.budgets->used_up(*server.registry.find(anna)));
  CHECK(server.held(anna).empty());
  // The class of a later session is lower from its begin.
  CHECK(server.falls(server.begin("course", "anna")));
  const SessionId carol = server.begin("course", "carol");
  server.work(ben, 1h);
  server.work(carol, 2h);
  CHECK(server.falls(carol));
  CHECK(server.falls(ben));  // by the tenant's budget
  CHECK_FALSE(server.falls(lab));
  CHECK(server.hours() == doctest::Approx(5));
  CHECK(server.hours("anna") == doctest::Approx(2));
}

TEST_CASE("a hard budget holds who waits, with the reason, until the month is over or the budget is another one") {
  Server server({course(0, 2, true)});
  const SessionId anna = server.begin("course", "anna"), ben = server.begin("course", "ben");
  server.work(anna, 2h);
  CHECK(server.held(anna) ==
        "the user has used the GPU time of this month (2 h); the next begins on 2026-12-01 00:00 UTC");
  CHECK(server.held(ben).empty());
  CHECK(server.falls(anna));  // a running session continues, with lowest priority
  server.configure({course(0, 3, true)});
  server.io.poll();
  CHECK(server.held(anna).empty());
  CHECK_FALSE(server.falls(anna));
  server.work(anna, 1h);
  CHECK(server.falls(anna));
  server.now += 24h * 20;  // December
  server.work(anna, 1s);
  CHECK(server.held(anna).empty());
  CHECK_FALSE(server.falls(anna));
  server.now -= 24h * 20;  // the clock was wrong
  server.work(anna, 0s);
  CHECK_FALSE(server.held(anna).empty());
  CHECK(server.falls(anna));
}

TEST_CASE("used time outlives servers that are killed, and sessions that go on are charged once") {
  Server server({course(10, 0)});
  const SessionId anna = server.begin("course", "anna"), ben = server.begin("course", "ben");
  server.work(anna, 3h);
  server.charged[anna] += 1h;  // not polled yet
  server.restart();
  CHECK(server.hours() == doctest::Approx(4));
  server.work(ben, 2h);
  server.end(ben);
  server.restart();
  server.restart();
  CHECK(server.hours() == doctest::Approx(6));
  CHECK(server.hours("ben") == doctest::Approx(2));
  server.work(anna, 4h);
  CHECK(server.falls(anna));
  server.scavengers.clear();
  server.restart();
  CHECK(server.falls(anna));
}

TEST_CASE("work from before anybody had a budget is not charged to it") {
  Server server({{.name = "course"}});
  const SessionId anna = server.begin("course", "anna");
  server.work(anna, 9h);
  CHECK_FALSE(fs::exists(server.folder / "budgets"));
  server.configure({course(2, 0)});
  server.work(anna, 1h);
  CHECK(server.hours() == doctest::Approx(1));
  CHECK_FALSE(server.falls(anna));
}
