#include "server/control/usage/use_history.hpp"

#include <algorithm>
#include <cmath>
#include <optional>

#include "server/control/usage/ended_line.hpp"

namespace gpuwire::server {
namespace {

constexpr double kHourS = 3600;

}  // namespace

void add_use(GpuUse& use, const SpentTime& spent, double since_unix_s, double until_unix_s) {
  if (spent.gpus.empty() || spent.gpu_s <= 0) return;
  const double length = spent.ended_unix_s - spent.begun_unix_s;
  const double within = std::min(spent.ended_unix_s, until_unix_s) - std::max(spent.begun_unix_s, since_unix_s);
  double part = length > 0 ? std::clamp(within / length, 0.0, 1.0) : double(within >= 0);
  if (part <= 0) return;
  for (unsigned gpu : spent.gpus) use[{spent.tenant, gpu}] += spent.gpu_s * part / double(spent.gpus.size());
}

bool UseHistory::add_line(std::string_view text) {
  const auto line = read_ended_line(text);
  const auto ended = line ? unix_time_of(line->time) : std::nullopt;
  if (!ended) return false;
  add({.begun_unix_s = *ended - line->session_s,
       .ended_unix_s = *ended,
       .tenant = line->tenant,
       .gpus = line->gpus,
       .gpu_s = line->gpu_s});
  return true;
}

void UseHistory::add(const SpentTime& spent) {
  if (!(std::abs(spent.ended_unix_s) < 1e12)) return;  // not a plausible time
  const auto last = int64_t(std::floor(spent.ended_unix_s / kHourS));
  const auto first = std::max(int64_t(std::floor(std::max(spent.begun_unix_s, -1e12) / kHourS)), last - kHistoryHours);
  for (int64_t hour = first; hour <= last; ++hour) {
    GpuUse one;
    add_use(one, spent, double(hour) * kHourS, double(hour + 1) * kHourS);
    if (one.empty()) continue;
    GpuUse& sum = hours_[hour];
    for (const auto& [who, gpu_s] : one) {
      entries_ += sum.contains(who) ? 0 : 1;
      sum[who] += gpu_s;
    }
  }
  while (!hours_.empty() &&
         (entries_ > kHistoryEntriesMax || hours_.begin()->first < hours_.rbegin()->first - kHistoryHours)) {
    entries_ -= hours_.begin()->second.size();
    hours_.erase(hours_.begin());
  }
}

GpuUse UseHistory::since(double since_unix_s) const {
  GpuUse use;
  for (auto hour = hours_.lower_bound(int64_t(std::floor(since_unix_s / kHourS))); hour != hours_.end(); ++hour) {
    const double ends = double(hour->first + 1) * kHourS;
    const double part = std::min(1.0, (ends - since_unix_s) / kHourS);
    for (const auto& [who, gpu_s] : hour->second) use[who] += gpu_s * part;
  }
  return use;
}

}  // namespace gpuwire::server
