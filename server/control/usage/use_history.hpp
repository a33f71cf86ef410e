// UseHistory has each tenant's use of each GPU in the last month, by hour, from the `ended` lines of the audit log.
#pragma once

#include <cstdint>
#include <map>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

namespace gpuwire::server {

inline constexpr int64_t kHistoryHours = 31 * 24;
inline constexpr size_t kHistoryEntriesMax = 1u << 18;  // of an hour, a tenant and a GPU; the oldest hours go first

// GPU time in seconds, by tenant and GPU.
using GpuUse = std::map<std::pair<std::string, unsigned>, double>;

// A session's GPU time, taken as spread evenly over the session's life and its GPUs: the audit log has no more detail.
struct SpentTime {
  double begun_unix_s = 0, ended_unix_s = 0;
  std::string tenant;
  std::vector<unsigned> gpus;
  double gpu_s = 0;
};
// Adds the part of `spent` between the two times.
void add_use(GpuUse& use, const SpentTime& spent, double since_unix_s, double until_unix_s);

// A value; no locks.
class UseHistory {
 public:
  // Adds a line of the audit log. Returns false, without a change, if it is no `ended` line or is malformed.
  bool add_line(std::string_view text);
  void add(const SpentTime& spent);

  // Returns the use of ended sessions since this time; of the first hour it counts the proportional part.
  GpuUse since(double since_unix_s) const;

 private:
  // By hours since 1970.
  std::map<int64_t, GpuUse> hours_;
  // In all hours together.
  size_t entries_ = 0;
};

}  // namespace gpuwire::server
