// GPU time by hour, tenant and GPU: the added time is found again, in full and in its hours.
#include "server/control/usage/use_history.hpp"

#include <cmath>
#include <random>
#include <sstream>

#include <doctest/doctest.h>

using namespace gpuwire::server;

namespace {

constexpr double kHour = 3600, kNow = 1'790'000'000;

double sum(const GpuUse& use) {
  double all = 0;
  for (const auto& [who, gpu_s] : use) all += gpu_s;
  return all;
}

std::string ended_line(const std::string& time, const std::string& more) {
  return R"({"time":")" + time + R"(","event":"ended","tenant":"anna")" + more + "}";
}

}  // namespace

TEST_CASE("a session's GPU time is spread over the hours in which it ran, and over its GPUs") {
  UseHistory history;
  const double begins = std::floor(kNow / kHour) * kHour;
  history.add(
      {.begun_unix_s = begins, .ended_unix_s = begins + 2 * kHour, .tenant = "anna", .gpus = {0, 2}, .gpu_s = 80});
  CHECK(sum(history.since(begins)) == doctest::Approx(80));
  GpuUse second = history.since(begins + kHour);
  CHECK(second[{"anna", 0}] == doctest::Approx(20));
  CHECK(second[{"anna", 2}] == doctest::Approx(20));
  CHECK(sum(history.since(begins + kHour / 2)) == doctest::Approx(60));
  CHECK(history.since(begins + 2 * kHour).empty());
}

TEST_CASE("no GPU time is lost or added, however sessions lie, as long as they lie in the month") {
  constexpr unsigned kSeed = 35;
  MESSAGE("seed ", kSeed);
  std::mt19937 random(kSeed);
  std::uniform_real_distribution<double> hours(0, 700), seconds(0, 5000);
  UseHistory history;
  double all = 0;
  for (int i = 0; i < 500; ++i) {
    const double ended = kNow - hours(random) * kHour, gpu_s = seconds(random);
    const double begun = std::max(kNow - 700 * kHour, ended - hours(random) * kHour);
    history.add({.begun_unix_s = begun,
                 .ended_unix_s = ended,
                 .tenant = std::to_string(i % 7),
                 .gpus = {unsigned(i % 3), 5},
                 .gpu_s = gpu_s});
    all += gpu_s;
  }
  CHECK(sum(history.since(kNow - 744 * kHour)) == doctest::Approx(all));
}

TEST_CASE("the ended lines of the audit log are read, and nothing else") {
  UseHistory history;
  CHECK(history.add_line(ended_line("2026-11-23T17:30:00.000Z", R"(,"gpus":[1],"seconds":600,"gpu_seconds":60)")));
  CHECK(history.add_line(ended_line("2026-11-23T17:30:00.000Z", R"(,"gpus":"all","seconds":-1,"gpu_seconds":5)")));
  for (const char* no : {"", "ended", "{}", R"({"event":"ended"})", R"({"event":"ended","time":"now","tenant":"anna"})",
                         R"({"event":"begun","time":"2026-11-23T17:30:00.000Z","tenant":"anna","x":"ended"})"})
    CHECK_FALSE(history.add_line(no));
  CHECK_FALSE(history.add_line(ended_line("2026-11-23T17:30:00.000Z", R"(,"management":true)")));
  constexpr double kFivePm = 1'795'453'200;  // 2026-11-23T17:00:00Z
  GpuUse use = history.since(kFivePm);
  CHECK(use[{"anna", 1}] == doctest::Approx(60));
  CHECK(use.size() == 1);
}

TEST_CASE("hours of more than a month ago are forgotten") {
  UseHistory history;
  auto at = [](double when) {
    return SpentTime{.begun_unix_s = when, .ended_unix_s = when + 1, .tenant = "anna", .gpus = {0}, .gpu_s = 1};
  };
  history.add(at(kNow - 40 * 24 * kHour));
  CHECK(sum(history.since(0)) == doctest::Approx(1));
  history.add(at(kNow));
  CHECK(sum(history.since(0)) == doctest::Approx(1));
}
