// RecentSessions has each tenant's sessions that ended last, with their GPUs and their waits, from the audit log.
#pragma once

#include <cstddef>
#include <cstdint>
#include <deque>
#include <map>
#include <string>
#include <string_view>
#include <vector>

namespace gpuwire::server {

inline constexpr size_t kRecentPerTenantMax = 100;  // the oldest go first
inline constexpr size_t kRecentTenantsMax = 1024;   // one more replaces the tenant whose last session ended first
inline constexpr size_t kRecentWaitsMax = 4096;     // of sessions that have not ended; the lowest number goes first

struct EndedSession {
  uint64_t session = 0;
  std::string tenant, user, program, host;
  // As in the audit log.
  std::string cause;
  std::vector<unsigned> gpus;
  double begun_unix_s = 0, ended_unix_s = 0, gpu_s = 0;
  double waited_s = 0;
  // The last reason; empty: it has not waited.
  std::string waited_for;
};

// A value; no locks.
class RecentSessions {
 public:
  // Ignores lines other than `ended` and `admitted`, and malformed ones.
  void add_line(std::string_view text);
  // Returns the sessions of the tenant, or of all if it is empty, the last end first; valid until the next add_line().
  std::vector<const EndedSession*> newest(const std::string& tenant, size_t count_max) const;

 private:
  struct Wait {
    double seconds;
    std::string reason;
  };
  void make_room_for(const std::string& tenant);

  // By tenant, in the order of the lines.
  std::map<std::string, std::deque<EndedSession>> ended_;
  // By session.
  std::map<uint64_t, Wait> waits_;
};

}  // namespace gpuwire::server
