// The content of `gpuwire top` and `gpuwire status`, from one snapshot, or from two with an interval between them.
#pragma once

#include <optional>
#include <string>
#include <vector>

#include "server/control/client/metrics.hpp"
#include "server/control/client/metrics_json.hpp"

namespace gpuwire::server {

enum class SortKey : uint8_t { gpu, memory, link, tenant, id };
std::optional<SortKey> sort_key_named(std::string_view name);

// The growth per second between two snapshots of one server. Both snapshots outlive it.
class Interval {
 public:
  Interval(const Snapshot& before, const Snapshot& after);

  const Snapshot& now() const { return after_; }
  double seconds() const { return seconds_; }  // 0: both are the same snapshot
  // Returns GPU time over the interval's time: 1 for one GPU all the time, above 1 with several GPUs, and cut to their
  // number, because time is charged when work is observed to end, which may be an interval later.
  double gpu_share(const DeviceMetrics& device) const;
  double system_share(const DeviceMetrics& device) const;
  double gpu_share(const TenantMetrics& tenant) const;
  double gpu_share(const SessionMetrics& session) const;
  double gate_wait_share(const SessionMetrics& session) const;
  double bytes_in_per_s(const SessionMetrics& session) const;
  double bytes_out_per_s(const SessionMetrics& session) const;
  double replies_per_s(const SessionMetrics& session) const;
  double bytes_in_per_s(const TenantMetrics& tenant) const;
  double bytes_out_per_s(const TenantMetrics& tenant) const;

 private:
  double rate(uint64_t before, uint64_t after) const;
  double share(uint64_t before_ns, uint64_t after_ns, size_t gpus) const;
  const SessionMetrics& earlier(const SessionMetrics& session) const;
  const TenantMetrics& earlier(const TenantMetrics& tenant) const;
  const DeviceMetrics& earlier(const DeviceMetrics& device) const;

  const Snapshot& before_;
  const Snapshot& after_;
  double seconds_;
};

// Returns GPU time over the time since the session began, or since GPU time counts; at most the number of GPUs.
double gpu_share_since_start(const SessionMetrics& session, const Snapshot& snapshot);
double gpu_share_since_start(const TenantMetrics& tenant, const Snapshot& snapshot);

// Indices of the sessions in the order of the display; waiting programs come last, in the order of the queue.
std::vector<size_t> display_order(const Interval& interval, SortKey sort);

// Lines without their ends, for a screen of `width` columns: columns without room are left out, the least important
// first, and top's lines are cut. 0: all columns, for a file or another program.
std::vector<std::string> top_lines(const Interval& interval, SortKey sort, size_t width);
std::vector<std::string> status_lines(const Snapshot& snapshot, size_t width);
// The lines of the sessions and of the queue, each behind an empty line; nothing: the snapshot has none.
std::vector<std::string> session_lines(const Snapshot& snapshot, size_t width);

// Returns the expiry of the newest credential of the tenant without a user's name, or of this user of it; nothing:
// there is none.
std::optional<double> identity_expires_unix_s(const Snapshot& snapshot, const std::string& tenant,
                                              const std::string& user);

// Returns a tenant's class, limits, use and expiry of its credential; nothing: the snapshot has no such tenant. `user`:
// the asking user, who gets no lines of other users; empty: no particular user, who gets all.
std::vector<std::string> tenant_lines(const Snapshot& snapshot, const std::string& tenant,
                                      const std::string& user = {});
Json tenant_json(const Snapshot& snapshot, const std::string& tenant, const std::string& user = {});

// Returns the snapshot with `interval_s` and, in devices, tenants and sessions, the rates of the interval.
Json top_json(const Interval& interval, SortKey sort);

}  // namespace gpuwire::server
