// The use of tenants by day: sums over the `ended` lines of the audit log.
#pragma once

#include <compare>
#include <cstdint>
#include <istream>
#include <map>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

namespace gpuwire::server {

inline constexpr size_t kUsageDaysMax = 366 * 256;  // of all tenants and users together; the oldest go first

struct Usage {
  uint64_t sessions = 0;
  // Charged.
  double gpu_s = 0;
  // From the sessions' beginnings to their ends.
  double session_s = 0;
  // The maximum over sessions, each summed over its GPUs.
  uint64_t peak_memory_bytes = 0;
  uint64_t bytes_in = 0, bytes_out = 0;
};

// The owner and the day of a row.
struct UsageKey {
  // "2026-11-23".
  std::string day;
  std::string tenant;
  // The user of the tenant; empty: no particular user, or all of them.
  std::string user;
  auto operator<=>(const UsageKey&) const = default;
};
using UsageRows = std::vector<std::pair<UsageKey, Usage>>;
enum class UsageBy : uint8_t { tenant, user };

// A session counts on the day (UTC) on which it ended. A value; no locks.
class UsageBook {
 public:
  // Adds a line of the audit log. Returns false, without a change, if it is no `ended` line or is malformed.
  bool add_line(std::string_view text);
  void add(const UsageKey& key, const Usage& usage);
  void read(std::istream& lines);

  // `tenant`: empty: all. `since`: a day, or empty. By user, the rows of a tenant's day sum up to its row by tenant.
  UsageRows days(const std::string& tenant, const std::string& since, UsageBy by = UsageBy::tenant) const;

 private:
  std::map<UsageKey, Usage> days_;
};

enum class UsageFormat : uint8_t { text, json, csv };
std::string usage_text(const UsageRows& rows, UsageFormat format, UsageBy by);
std::string usage_text(const UsageBook& book, UsageFormat format, const std::string& tenant = {},
                       const std::string& since = {}, UsageBy by = UsageBy::tenant);

}  // namespace gpuwire::server
