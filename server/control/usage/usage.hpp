// What tenants have used, by day: sums over the `ended` lines of the audit log.
#pragma once

#include <cstdint>
#include <istream>
#include <map>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

namespace gpuwire::server {

inline constexpr size_t kUsageDaysMax = 366 * 64;  // of all tenants together; what is oldest goes first
inline constexpr size_t kUsageLineBytesMax = 16 << 10;

struct Usage {
  uint64_t sessions = 0;
  double gpu_s = 0;                // charged
  double session_s = 0;            // from the sessions' beginnings to their ends
  uint64_t peak_memory_bytes = 0;  // of the session that had most, over its GPUs
  uint64_t bytes_in = 0, bytes_out = 0;
};

// A session counts on the day (UTC) on which it ended. A value; no locks.
class UsageBook {
 public:
  // A line of the audit log. False: it is no `ended` line, or none that can be read; nothing has changed.
  bool add_line(std::string_view line);
  // `day`: "2026-11-23".
  void add(const std::string& day, const std::string& tenant, const Usage& usage);
  void read(std::istream& lines);

  // `tenant`: empty: all. `since`: a day, or empty.
  std::vector<std::pair<std::pair<std::string, std::string>, Usage>> days(const std::string& tenant,
                                                                          const std::string& since) const;

 private:
  std::map<std::pair<std::string, std::string>, Usage> days_;  // by day and tenant
};

enum class UsageFormat : uint8_t { text, json, csv };
std::string usage_text(const UsageBook& book, UsageFormat format, const std::string& tenant = {},
                       const std::string& since = {});

}  // namespace gpuwire::server
