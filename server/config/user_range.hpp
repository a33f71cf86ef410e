// A range of users of the machine, by number.
#pragma once

#include <cstdint>
#include <limits>
#include <optional>

#include <sys/types.h>

namespace gpuwire::server {

struct UserRange {
  // Both in it.
  uid_t first = 0, last = 0;
  bool operator==(const UserRange&) const = default;
};

// Smaller numbers belong to the system and to people (login.defs(5), SUB_UID_MIN). The greatest number means "none".
inline constexpr uint64_t kWorkerUserMin = 65536, kWorkerUserMax = std::numeric_limits<uid_t>::max() - 1;

// None: workers may not have these users.
inline std::optional<UserRange> user_range(uint64_t first, uint64_t last) {
  if (first < kWorkerUserMin || last < first || last > kWorkerUserMax) return std::nullopt;
  return UserRange{uid_t(first), uid_t(last)};
}

}  // namespace gpuwire::server
