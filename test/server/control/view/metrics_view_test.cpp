#include "server/control/view/metrics_view.hpp"

#include <algorithm>

#include <doctest/doctest.h>

#include "server/control/view/text_table.hpp"
#include "test/server/control/sample.hpp"

using namespace gpuwire::server;

namespace {

std::string text_of(const std::vector<std::string>& lines) {
  std::string text;
  for (const std::string& line : lines) text += line + "\n";
  return text;
}

// The tables of the two samples.
constexpr const char* kTop = R"(
gpuwire 1.2.3, process 4242, up 2h00m: 2 of 64 sessions, 1 waiting
2 x NVIDIA H200, NVIDIA 580.159.04, CUDA 13.0 on 0.0.0.0:9750, unix:/run/gpuwire/server

GPU  NAME         GPU%  SYS%  REGIME  SESSIONS            MEMORY  RESERVED
  0  NVIDIA H200  95.0   1.0  lease          2  50.0 / 139.7 GiB         -
  1  NVIDIA H200   0.0   0.0  free           0     0 / 139.7 GiB         -

TENANT  CLASS        WEIGHT  SESSIONS  WAITING  GPU%  ALL%           MEMORY  RESERVED    HOST MEMORY  IN/s  OUT/s
alice   interactive       2     1 / 4        0  65.0   0.1  20.0 / 40.0 GiB         -  1.0 / 4.0 GiB   0 B    0 B
bob     batch             1         1        1  30.0   0.0         30.0 GiB         -          0 MiB   0 B    0 B

SESSION  PROGRAM                 TENANT  CLASS        STATE        AGE  GPUS  GPU%  ALL%           MEMORY  RESERVED  FLIGHT  GATE%  HELD BY  WAITS/s   IN/s  OUT/s    RTT
      3  python@laptop           alice   interactive  running*  16m42s  0     65.0   0.7  20.0 / 40.0 GiB         -   450us   25.0  -            500  10 MB   1 kB  210us
      4  train\x1b[2J@node\x0a8  bob     batch        running!   1m02s  0     30.0   5.8         30.0 GiB         -       -    0.0  class 3        0    0 B    0 B      -

PLACE  SESSION  TENANT  CLASS  WAITS  FOR                PROGRAM
    1        6  bob     batch    12s  20.0 GiB on 1 GPU  eval@node8

warning: session 4 of bob: a kernel runs for 70 s
)";

// On a terminal of 80 columns.
constexpr const char* kNarrowSessions = R"(
SESSION  PROGRAM         TENANT  STATE     GPUS  GPU%           MEMORY  RESERVED
      3  python@laptop   alice   running*  0     65.0  20.0 / 40.0 GiB         -
)";

constexpr const char* kStatus = R"(
gpuwire 1.2.3, process 4242, up 2h00m: 2 of 64 sessions, 1 waiting
2 x NVIDIA H200, NVIDIA 580.159.04, CUDA 13.0 on 0.0.0.0:9750, unix:/run/gpuwire/server

GPU  NAME         REGIME  SESSIONS            MEMORY  RESERVED
  0  NVIDIA H200  lease          2  50.0 / 139.7 GiB         -
  1  NVIDIA H200  free           0     0 / 139.7 GiB         -

TENANT     GPU TIME  BEGUN  ENDED       REFUSED
alice          6.0s      3  2 finished  1 never_fits
bob            3.0s      1  -           -
(unknown)         -      -  -           4 token

SESSION  PROGRAM                 TENANT  STATE        AGE  GPUS           MEMORY  RESERVED  BY               FROM
      3  python@laptop           alice   running*  16m40s  0     20.0 / 40.0 GiB         -  tls certificate  10.0.0.7:4711
      4  train\x1b[2J@node\x0a8  bob     running!   1m00s  0            30.0 GiB         -  token            10.0.0.8:4712

PLACE  SESSION  TENANT  CLASS  WAITS  FOR                PROGRAM
    1        6  bob     batch    10s  20.0 GiB on 1 GPU  eval@node8

CREDENTIAL   OF          EXPIRES           IN  RENEWED  ID
certificate  the server  2026-09-21  1041d15h  -        -

warning: session 4 of bob: a kernel runs for 70 s
)";

}  // namespace

TEST_CASE("The tables of top show the interval between two snapshots") {
  Snapshot before = sample_snapshot(), after = sample_later();
  CHECK("\n" + text_of(top_lines(Interval(before, after), SortKey::gpu, 0)) == kTop);
}

TEST_CASE("The tables of status show what there is and what there was") {
  CHECK("\n" + text_of(status_lines(sample_snapshot(), 0)) == kStatus);
}

TEST_CASE("status has a line for each certificate that expires soon") {
  Snapshot snapshot = sample_snapshot();
  snapshot.server.certificates.push_back(
      {.of = "tenant", .tenant = "bob", .expires_unix_s = 1, .warning = "the token of tenant bob expires"});
  CHECK(text_of(status_lines(snapshot, 0)).ends_with("\n\nwarning: the token of tenant bob expires\n"));
}

TEST_CASE("status lists each credential with its end, and says how many it leaves out") {
  Snapshot snapshot = sample_snapshot();
  const double now = snapshot.taken_unix_s, day = 86'400;
  snapshot.server.certificates = {
      {.of = "tenant", .tenant = "course", .expires_unix_s = now + 5 * day, .warning = "", .kind = "token", .id = "a1"},
      {.of = "tenant",
       .tenant = "course",
       .expires_unix_s = now + 9 * day,
       .warning = "",
       .user = "anna",
       .kind = "certificate",
       .id = "0b",
       .renewed = true},
      {.of = "tenant",
       .tenant = "course",
       .expires_unix_s = now - day,
       .warning = "",
       .user = "ben",
       .kind = "certificate",
       .id = "0c"}};
  snapshot.server.certificates_left_out = 7;
  const std::string text = text_of(status_lines(snapshot, 0));
  for (const char* line : {"\ntoken        course       ", "  5d00h  -        a1\n", "\ncertificate  course/anna  ",
                           "  9d00h  yes      0b\n", "\ncertificate  course/ben   ", "  expired  -        0c\n",
                           "\n7 more credentials, which expire later: gpuwire admin list shows all\n"})
    CHECK_MESSAGE(text.find(line) != std::string::npos, line << text);
}

TEST_CASE("the user's own view gives the end of the user's newest credential, and not another user's") {
  Snapshot snapshot = sample_snapshot();
  auto add = [&](const char* user, double expires_unix_s) {
    snapshot.server.certificates.push_back(
        {.of = "tenant", .tenant = "bob", .expires_unix_s = expires_unix_s, .warning = "", .user = user});
  };
  add("", 5e9), add("anna", 3e9), add("anna", 2e9), add("ben", 4e9);
  CHECK(identity_expires_unix_s(snapshot, "bob", "") == 5e9);
  CHECK(identity_expires_unix_s(snapshot, "bob", "anna") == 3e9);
  CHECK_FALSE(identity_expires_unix_s(snapshot, "bob", "carl"));
  CHECK(tenant_json(snapshot, "bob", "ben").at("identity_expires_unix_s") == 4e9);
}

TEST_CASE("a drained GPU is shown as such, to administrators and to tenants") {
  Snapshot snapshot = sample_snapshot();
  const std::string name = snapshot.tenants[0].name;
  const auto has = [](const std::vector<std::string>& lines, const std::string& text) {
    return std::ranges::any_of(lines, [&](const std::string& line) { return line.find(text) != line.npos; });
  };
  CHECK_FALSE(has(status_lines(snapshot, 0), "drained"));
  CHECK_FALSE(has(tenant_lines(snapshot, name, ""), "drained"));
  CHECK(tenant_json(snapshot, name, "")["gpus_drained"] == Json::array());
  snapshot.devices[0].drain = "draining";
  CHECK(has(status_lines(snapshot, 0), "  draining  "));
  snapshot.devices[0].drain = "drained";
  CHECK(has(status_lines(snapshot, 0), "  drained  "));
  CHECK(has(top_lines(Interval(snapshot, snapshot), SortKey::gpu, 0), "  drained  "));
  CHECK(has(tenant_lines(snapshot, name, ""), ", drained"));
  CHECK(tenant_json(snapshot, name, "")["gpus_drained"] == Json::array({0}));
}

TEST_CASE("80 columns show what a session is and has, and leave out the rest") {
  Snapshot before = sample_snapshot(), after = sample_later();
  std::string text = "\n" + text_of(top_lines(Interval(before, after), SortKey::gpu, 80));
  CHECK_MESSAGE(text.find(kNarrowSessions) != std::string::npos, text);
  for (const char* gone : {"RTT", "FLIGHT", "IN/s"}) CHECK_MESSAGE(text.find(gone) == std::string::npos, gone);
  CHECK(columns_of(text.substr(text.find("TENANT  CLASS"),
                               text.find('\n', text.find("TENANT  CLASS")) - text.find("TENANT  CLASS"))) <= 80);
}

TEST_CASE("the queue has a column for when programs may expect to start, where the server knows it of any") {
  Snapshot snapshot = sample_snapshot();
  CHECK(text_of(session_lines(snapshot, 0)).find("STARTS IN") == std::string::npos);
  SessionMetrics second = snapshot.sessions.back();
  second.id = 7, second.place = 2;
  snapshot.sessions.back().start_in_s = 754;
  snapshot.sessions.push_back(second);
  const std::string expected =
      "PLACE  SESSION  TENANT  CLASS  WAITS  STARTS IN  FOR                PROGRAM\n"
      "    1        6  bob     batch    10s    ~12m34s  20.0 GiB on 1 GPU  eval@node8\n"
      "    2        7  bob     batch    10s          -  20.0 GiB on 1 GPU  eval@node8\n";
  CHECK(text_of(session_lines(snapshot, 0)).ends_with(expected));
  CHECK(text_of(top_lines(Interval(snapshot, snapshot), SortKey::gpu, 0)).find(expected) != std::string::npos);
  const Json json = to_json(snapshot).at("sessions");
  CHECK(json.at(2).at("start_in_s") == 754);
  CHECK(json.at(3).at("start_in_s").is_null());
  CHECK(snapshot_from_json(to_json(snapshot)).value() == snapshot);
}

TEST_CASE("Why a program waits is cut no further than the screen is wide") {
  Snapshot snapshot = sample_snapshot();
  auto waiting = std::ranges::find_if(snapshot.sessions, [](const SessionMetrics& one) { return one.place != 0; });
  REQUIRE(waiting != snapshot.sessions.end());
  waiting->waits_for = "4 GiB of 8 GiB are not free on 1 GPU now; 4 GiB are guaranteed to other tenants";
  CHECK(text_of(status_lines(snapshot, 160)).find(waiting->waits_for) != std::string::npos);
  for (size_t width : {80, 100, 120})
    for (const std::string& line : status_lines(snapshot, width))
      if (line.find("4 GiB of 8") != std::string::npos) CHECK(columns_of(line) <= width);
}

TEST_CASE("A share since the start is of the time for which there are totals, and never over what there is") {
  Snapshot snapshot = sample_snapshot();
  TenantMetrics& tenant = snapshot.tenants[0];
  tenant.devices[0].gpu_time_ns = 3600'000'000'000;  // of an earlier server, too
  snapshot.server.started_unix_s = snapshot.taken_unix_s - 60;
  snapshot.server.counted_since_unix_s = snapshot.taken_unix_s - 7200;
  CHECK(gpu_share_since_start(tenant, snapshot) == doctest::Approx(0.5));
  snapshot.server.counted_since_unix_s = 0;
  CHECK(gpu_share_since_start(tenant, snapshot) == 2);  // two GPUs
  SessionMetrics& session = snapshot.sessions[0];
  session.gpu_time_ns = 3600'000'000'000;
  session.since_unix_s = snapshot.taken_unix_s - 60;
  CHECK(gpu_share_since_start(session, snapshot) == 1);
}

TEST_CASE("Output for another program is not cut, however long it is") {
  Snapshot snapshot = sample_snapshot();
  const std::string name(100, 'n');
  snapshot.sessions[0].tenant = name;
  snapshot.sessions[0].program = name;
  CHECK(text_of(status_lines(snapshot, 0)).find(name + "@laptop  " + name) != std::string::npos);
  CHECK(text_of(status_lines(snapshot, 80)).find(name) == std::string::npos);
}

TEST_CASE("Small sizes are in MiB, and a share is never over what there is") {
  Snapshot before = sample_snapshot(), after = sample_later();
  after.sessions[0].devices[0].memory_used_bytes = 300ull << 20;
  after.devices[0].gpu_time_ns =
      before.devices[0].gpu_time_ns + 2'100'000'000;  // charged late: more than the interval of 2 s
  Interval interval(before, after);
  CHECK(interval.gpu_share(after.devices[0]) == 1);
  std::string text = text_of(top_lines(interval, SortKey::gpu, 0));
  CHECK(text.find("300 MiB / 40.0 GiB") != std::string::npos);
  CHECK(text.find("100.0   1.0  lease") != std::string::npos);
}

TEST_CASE("The column MEMORY of top has what is used of the limit on the GPU where most is used") {
  constexpr uint64_t kMiB = 1ull << 20, kGiB = 1ull << 30;
  // Returns the column's cell in the row that begins with `name`, of the table whose heading begins so.
  auto cell = [](const Snapshot& now, const std::string& heading, const std::string& name, size_t width) {
    size_t end = 0;
    for (const std::string& line : top_lines(Interval(sample_snapshot(), now), SortKey::gpu, width)) {
      if (line.starts_with(heading)) end = line.find("MEMORY") + std::string("MEMORY").size();
      if (end == 0 || line.empty() || line.find(name) != line.find_first_not_of(' ')) continue;
      const std::string until = line.substr(0, end);
      return until.substr(until.rfind("  ") + 2);
    }
    return std::string("no such row");
  };
  struct Case {
    uint64_t first, second, limit;
    const char* shown;
  };
  for (const Case& one : {Case{20 * kGiB, 30 * kGiB, 40 * kGiB, "30.0 / 40.0 GiB"},
                          Case{30 * kGiB, 20 * kGiB, 40 * kGiB, "30.0 / 40.0 GiB"},
                          Case{30 * kGiB, 20 * kGiB, 0, "30.0 GiB"}, Case{0, 0, 40 * kGiB, "0 / 40.0 GiB"},
                          Case{0, 0, 0, "0 MiB"}, Case{5 * kMiB, 300 * kMiB, 512 * kMiB, "300 / 512 MiB"}}) {
    CAPTURE(one.shown);
    Snapshot now = sample_later();
    SessionMetrics& session = now.sessions[0];
    session.memory_limit_bytes = one.limit;
    session.devices.resize(2);
    session.devices[0].memory_used_bytes = one.first;
    session.devices[1].device = 1;
    session.devices[1].memory_used_bytes = one.second;
    TenantMetrics& tenant = now.tenants[0];
    tenant.devices.resize(2);
    tenant.devices[1].device = 1;
    tenant.devices[0].memory_used_bytes = tenant.devices[0].memory_held_bytes = one.first;
    tenant.devices[1].memory_used_bytes = tenant.devices[1].memory_held_bytes = one.second;
    for (TenantDeviceMetrics& device : tenant.devices) device.memory_limit_bytes = one.limit;
    // A screen of 80 columns has no room for others, and keeps this one.
    for (size_t width : {0, 80}) {
      CHECK(cell(now, "SESSION  PROGRAM", "3  python", width) == one.shown);
      CHECK(cell(now, "TENANT  CLASS", "alice", width) == one.shown);
    }
  }
}

TEST_CASE("No control character of a client reaches the terminal, and no line is wider than it") {
  Snapshot before = sample_snapshot(), after = sample_later();
  for (const std::string& line : top_lines(Interval(before, after), SortKey::gpu, 72)) {
    CHECK(columns_of(line) <= 72);
    for (char byte : line) CHECK((uint8_t(byte) >= 0x20 && byte != 0x7f));
  }
}

TEST_CASE("Shares of an interval: the sum over tenants is the device's, and the sum over sessions too") {
  Snapshot before = sample_snapshot(), after = sample_later();
  Interval interval(before, after);
  double tenants = 0, sessions = 0;
  for (const auto& tenant : after.tenants) tenants += interval.gpu_share(tenant);
  for (const auto& session : after.sessions) sessions += interval.gpu_share(session);
  CHECK(tenants == doctest::Approx(0.95));
  CHECK(sessions == doctest::Approx(0.95));
  CHECK(interval.gpu_share(after.devices[0]) == doctest::Approx(0.95));
  CHECK(interval.system_share(after.devices[0]) == doctest::Approx(0.01));
  CHECK(interval.gate_wait_share(after.sessions[0]) == doctest::Approx(0.25));
}

TEST_CASE("An interval of no length has no rates, and figures that went back count as not grown") {
  Snapshot one = sample_snapshot(), back = sample_later();
  back.sessions[0].gpu_time_ns = 1;
  CHECK(Interval(one, one).gpu_share(one.tenants[0]) == 0);
  CHECK(Interval(one, back).gpu_share(back.sessions[0]) == 0);
}

TEST_CASE("A session that began within the interval has all of its time in it") {
  Snapshot before = sample_snapshot(), after = sample_later();
  after.sessions.push_back({.id = 9, .tenant = "alice", .gpu_time_ns = 1'000'000'000});
  CHECK(Interval(before, after).gpu_share(after.sessions.back()) == doctest::Approx(0.5));
}

TEST_CASE("Sessions are sorted by the key, and who waits comes last in the order of the queue") {
  Snapshot before = sample_snapshot(), after = sample_later();
  after.sessions.insert(after.sessions.begin(), {.id = 1, .tenant = "bob", .place = 2});
  Interval interval(before, after);
  auto ids = [&](SortKey key) {
    std::vector<uint64_t> shown;
    for (size_t i : display_order(interval, key)) shown.push_back(after.sessions[i].id);
    return shown;
  };
  CHECK(ids(SortKey::gpu) == std::vector<uint64_t>{3, 4, 6, 1});
  CHECK(ids(SortKey::memory) == std::vector<uint64_t>{4, 3, 6, 1});
  CHECK(ids(SortKey::tenant) == std::vector<uint64_t>{3, 4, 6, 1});
  CHECK_FALSE(sort_key_named("colour"));
}

TEST_CASE("The JSON of top is the snapshot with the interval's figures") {
  Snapshot before = sample_snapshot(), after = sample_later();
  Json json = top_json(Interval(before, after), SortKey::gpu);
  CHECK(json["interval_s"] == doctest::Approx(2));
  CHECK(json["devices"][0]["gpu_share"] == doctest::Approx(0.95));
  CHECK(json["tenants"][1]["gpu_share"] == doctest::Approx(0.3));
  CHECK(json["tenants"][0]["gpu_share_since_start"].is_number());
  CHECK(json["sessions"][0]["id"] == 3);
  CHECK(json["sessions"][0]["bytes_in_per_s"] == doctest::Approx(10e6));
  CHECK(json["sessions"][0]["replies_per_s"] == doctest::Approx(500));
  CHECK(json["sessions"].size() == 3);
  auto read = snapshot_from_json(json);
  REQUIRE(read);
  CHECK(read->tenants == after.tenants);
}

TEST_CASE("Text is cut at code points") {
  CHECK(cut_to("größer", 6) == "größer");
  CHECK(cut_to("größer", 4) == "grö…");
  CHECK(cut_to("größer", 1) == "…");
  CHECK(cut_to("größer", 0) == "");
  CHECK(columns_of("größer") == 6);
}
