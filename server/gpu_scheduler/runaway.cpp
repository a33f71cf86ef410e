#include "server/gpu_scheduler/runaway.hpp"

#include <algorithm>

#include <fmt/format.h>

#include "server/gpu_scheduler/limits.hpp"

namespace gpuwire::server {
namespace {

using std::chrono::milliseconds;
using std::chrono::nanoseconds;

std::string seconds(nanoseconds time) { return fmt::format("{:.3g} s", double(time.count()) / 1e9); }

PageTime warning_time(PageTime since, milliseconds limit) {
  return since + nanoseconds(int64_t(double(nanoseconds(limit).count()) * kWarnAt));
}

}  // namespace

RunawayWatch::Verdict RunawayWatch::judge(const SessionLimits& limits, PageTime stuck_since, PageTime idle_since,
                                          PageTime now) {
  Verdict verdict;
  if (ended_) return verdict;
  auto check = [&](PageTime since, milliseconds limit, const char* what) {
    if (limit.count() == 0) return;
    if (since == PageTime{}) since = now;  // it could begin at any moment
    // A page may show a new beginning at every poll; this does not make warnings more frequent.
    PageTime warns = warning_time(std::max(since, warned_at_), limit), ends = since + limit;
    PageTime next = now < warns ? std::min(warns, ends) : ends;
    verdict.next = verdict.next ? std::min(*verdict.next, next) : next;
    if (now >= ends) {
      ended_ = true;
      verdict.kind = Verdict::Kind::end;
      verdict.text = fmt::format("{} for {}: its tenant's limit is {}", what, seconds(now - since), seconds(limit));
    } else if (now >= warns && warned_ != since && verdict.kind == Verdict::Kind::nothing) {
      warned_ = since;
      warned_at_ = now;
      verdict.kind = Verdict::Kind::warn;
      verdict.text = warning_ = fmt::format("{} for {}; the session ends at its tenant's limit of {}", what,
                                            seconds(now - since), seconds(limit));
    }
  };
  check(stuck_since, limits.kernel_time_max, "a kernel has been running");
  if (verdict.kind == Verdict::Kind::end) verdict.stop = StopKind::kernel_time;
  if (verdict.kind != Verdict::Kind::end) check(idle_since, limits.idle_time_max, "the session has been idle");
  if (warned_ != PageTime{} && warned_ != stuck_since && warned_ != idle_since) warning_.clear();
  return verdict;
}

}  // namespace gpuwire::server
