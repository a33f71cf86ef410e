#include "server/gpu_scheduler/runaway.hpp"

#include <doctest/doctest.h>

using namespace gpuwire::server;
using namespace std::chrono_literals;
using Kind = RunawayWatch::Verdict::Kind;

TEST_CASE("without limits nobody is warned and nobody has to be asked again") {
  RunawayWatch watch;
  auto verdict = watch.judge({}, 1s, 1s, 1000s);
  CHECK(verdict.kind == Kind::nothing);
  CHECK(!verdict.next);
}

TEST_CASE("a kernel is warned of at four fifths of the limit, once, and ended at it, once") {
  RunawayWatch watch;
  SessionLimits limits{.kernel_time_max = 10s};
  CHECK(watch.judge(limits, 100s, {}, 101s).kind == Kind::nothing);
  CHECK(watch.judge(limits, 100s, {}, 101s).next == PageTime(108s));
  auto warned = watch.judge(limits, 100s, {}, 108s);
  CHECK(warned.kind == Kind::warn);
  CHECK(warned.text.find("kernel") != std::string::npos);
  CHECK(warned.text.find("10 s") != std::string::npos);
  CHECK(warned.next == PageTime(110s));
  CHECK(!watch.warning().empty());
  CHECK(watch.judge(limits, 100s, {}, 109s).kind == Kind::nothing);
  auto ended = watch.judge(limits, 100s, {}, 110s);
  CHECK(ended.kind == Kind::end);
  CHECK(ended.stop == StopKind::kernel_time);
  CHECK(watch.judge(limits, 100s, {}, 111s).kind == Kind::nothing);
}

TEST_CASE("progress begins anew") {
  RunawayWatch watch;
  SessionLimits limits{.kernel_time_max = 10s};
  CHECK(watch.judge(limits, 100s, {}, 109s).kind == Kind::warn);
  CHECK(watch.judge(limits, 109s, {}, 111s).kind == Kind::nothing);
  CHECK(watch.warning().empty());
  CHECK(watch.judge(limits, 109s, {}, 118s).kind == Kind::warn);
}

TEST_CASE("a page that tells of ever new beginnings brings on no more warnings than kernels could") {
  RunawayWatch watch;
  SessionLimits limits{.kernel_time_max = 10s, .idle_time_max = 20s};
  int warnings = 0;
  for (PageTime now = 100s; now < 200s; now += 1ms)
    warnings += watch.judge(limits, now - 9s, now - 19s, now).kind == Kind::warn;
  CHECK(warnings == 13);
}

TEST_CASE("a session that is not stuck could be from now on, so it is checked again in time") {
  RunawayWatch watch;
  CHECK(watch.judge({.kernel_time_max = 10s}, {}, {}, 50s).next == PageTime(58s));
}

TEST_CASE("an idle session is warned and ended by its own limit") {
  RunawayWatch watch;
  SessionLimits limits{.kernel_time_max = 1s, .idle_time_max = 100s};
  CHECK(watch.judge(limits, {}, 1000s, 1050s).kind == Kind::nothing);
  auto warned = watch.judge(limits, {}, 1000s, 1080s);
  CHECK(warned.kind == Kind::warn);
  CHECK(warned.text.find("idle") != std::string::npos);
  CHECK(watch.judge(limits, {}, {}, 1090s).kind == Kind::nothing);  // it has worked
  CHECK(watch.judge(limits, {}, 1091s, 1180s).kind == Kind::warn);
  CHECK(watch.judge(limits, {}, 1091s, 1191s).kind == Kind::end);
}
