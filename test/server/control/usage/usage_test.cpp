// Sums over the audit log by day and tenant, as text, JSON and CSV, also with malformed lines.
#include "server/control/usage/ended_line.hpp"
#include "server/control/usage/usage.hpp"

#include <sstream>

#include <doctest/doctest.h>
#include <nlohmann/json.hpp>

using namespace gpuwire::server;

namespace {

std::string line(const std::string& time, const std::string& event, const std::string& tenant,
                 const std::string& more) {
  return R"({"time":")" + time + R"(","event":")" + event + R"(","tenant":)" + tenant + more + "}\n";
}

UsageBook sample() {
  const std::string anna = R"("anna")";
  std::istringstream lines(
      line("2026-11-22T23:59:59.999Z", "ended", anna,
           R"(,"seconds":3600,"gpu_seconds":1800.5,"peak_memory_bytes":1073741824,"bytes_in":10,"bytes_out":20)") +
      line("2026-11-23T00:00:00.000Z", "begun", anna, "") +
      line("2026-11-23T01:00:00.000Z", "ended", anna,
           R"(,"seconds":60,"gpu_seconds":30,"peak_memory_bytes":5,"bytes_in":1,"bytes_out":2)") +
      line("2026-11-23T02:00:00.000Z", "ended", anna,
           R"(,"seconds":60,"gpu_seconds":30,"peak_memory_bytes":7,"bytes_in":1,"bytes_out":2)") +
      line("2026-11-23T02:00:00.000Z", "ended", R"("ben, \"b\"")", R"(,"seconds":1,"gpu_seconds":-5)") +
      line("2026-11-23T02:00:00.000Z", "ended", anna, R"(,"management":true,"seconds":9)"));
  UsageBook book;
  book.read(lines);
  return book;
}

}  // namespace

TEST_CASE("sessions count for their tenant on the day on which they ended, and the largest peak stands") {
  auto days = sample().days("", "");
  REQUIRE(days.size() == 3);
  CHECK(days[0].first == UsageKey{"2026-11-22", "anna", ""});
  CHECK(days[0].second.gpu_s == 1800.5);
  CHECK(days[1].first.tenant == "anna");
  CHECK(days[1].second.sessions == 2);
  CHECK(days[1].second.gpu_s == 60);
  CHECK(days[1].second.peak_memory_bytes == 7);
  CHECK(days[1].second.bytes_out == 4);
  CHECK(days[2].second.gpu_s == 0);  // an impossible value
  CHECK(sample().days("anna", "2026-11-23").size() == 1);
  CHECK(sample().days("nobody", "").empty());
}

TEST_CASE("lines that are none, of another kind or without an end change nothing") {
  UsageBook book;
  for (const char* line :
       {"", "ended", "\"ended\"", "[\"ended\"]", "{\"event\":\"ended\"}", "{\"event\":\"ended\",\"tenant\":\"a\"}",
        "{\"event\":\"ended\",\"tenant\":3,\"time\":\"2026-11-23T00:00:00Z\"}",
        "{\"event\":[\"ended\"],\"tenant\":\"a\",\"time\":\"2026-11-23T00:00:00Z\"}", "sed\":5,\"event\":\"ended\"}"})
    CHECK_FALSE(book.add_line(line));
  CHECK_FALSE(book.add_line("\"ended\"" + std::string(kUsageLineBytesMax, ' ')));
  CHECK(book.days("", "").empty());
  CHECK(book.add_line(R"({"event":"ended","tenant":"a","time":"2026-11-23T00:00:00Z","seconds":"much"})"));
  CHECK(book.days("", "")[0].second.session_s == 0);
}

TEST_CASE("the oldest days go first when there are too many") {
  UsageBook book;
  for (size_t i = 0; i < kUsageDaysMax + 5; ++i)
    book.add({std::to_string(1'000'000'000 + i), "a", ""}, {.sessions = 1});
  auto days = book.days("", "");
  CHECK(days.size() == kUsageDaysMax);
  CHECK(days[0].first.day == "1000000005");
}

TEST_CASE("the same figures as a table, JSON and CSV") {
  const UsageBook book = sample();
  auto json = nlohmann::json::parse(usage_text(book, UsageFormat::json));
  REQUIRE(json.size() == 3);
  CHECK(json[0]["day"] == "2026-11-22");
  CHECK(json[0]["gpu_seconds"] == 1800.5);
  CHECK(json[1]["peak_memory_bytes"] == 7);
  std::string csv = usage_text(book, UsageFormat::csv, "", "2026-11-23");
  CHECK(csv ==
        "day,tenant,sessions,gpu_seconds,session_seconds,peak_memory_bytes,bytes_in,bytes_out\n"
        "2026-11-23,anna,2,60.000,120.000,7,2,4\n"
        "2026-11-23,\"ben, \"\"b\"\"\",1,0.000,1.000,0,0,0\n");
  std::string text = usage_text(book, UsageFormat::text, "anna");
  CHECK(text.find("2026-11-22  anna           1      0.500     1.000          1.000\n") != std::string::npos);
  CHECK(text.find("total") != std::string::npos);
  CHECK(text.find("ben") == std::string::npos);
}

TEST_CASE("by user, the rows of a tenant's day sum up to its row by tenant") {
  UsageBook book;
  for (const auto& [user, gpu_s] : {std::pair("ben", 30), {"anna", 10}, {"", 5}, {"anna", 20}})
    REQUIRE(book.add_line(R"({"time":"2026-11-23T01:00:00Z","event":"ended","tenant":"course","gpu_seconds":)" +
                          std::to_string(gpu_s) + (*user ? R"(,"user":")" + std::string(user) + "\"" : "") + "}"));
  REQUIRE(book.add_line(R"({"time":"2026-11-23T01:00:00Z","event":"ended","tenant":"dora","gpu_seconds":1})"));
  const UsageRows users = book.days("course", "", UsageBy::user), tenants = book.days("course", "");
  REQUIRE(users.size() == 3);
  CHECK(users[0].first.user.empty());
  CHECK(users[1].first.user == "anna");
  CHECK(users[1].second.gpu_s == 30);
  CHECK(users[2].first.user == "ben");
  REQUIRE(tenants.size() == 1);
  CHECK(tenants[0].second.gpu_s == users[0].second.gpu_s + users[1].second.gpu_s + users[2].second.gpu_s);
  CHECK(tenants[0].second.sessions == 4);
  CHECK(book.days("", "").size() == 2);
  const std::string csv = usage_text(book, UsageFormat::csv, "course", "", UsageBy::user);
  CHECK(csv.find("day,tenant,user,sessions,") == 0);
  CHECK(csv.find("2026-11-23,course,anna,2,30.000,") != csv.npos);
  CHECK(usage_text(book, UsageFormat::text, "course", "", UsageBy::user).find("USER") != std::string::npos);
  CHECK(nlohmann::json::parse(usage_text(book, UsageFormat::json, "", "", UsageBy::user)).at(1).at("user") == "anna");
}
