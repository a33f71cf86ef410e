#include "server/web/words.hpp"

#include <algorithm>
#include <chrono>
#include <ctime>

#include <fmt/format.h>

namespace gpuwire::server::web {

std::string size_words(uint64_t bytes) {
  constexpr uint64_t kMiBytes = 1ull << 20, kGiBytes = 1ull << 30;
  if (bytes < kGiBytes) return fmt::format("{} MiB", bytes / kMiBytes);
  return fmt::format("{:.1f} GiB", double(bytes) / double(kGiBytes));
}

std::string percent_words(double share) { return fmt::format("{:.1f} %", 100 * share); }

std::string time_words(double seconds) {
  const auto s = uint64_t(std::clamp(seconds, 0.0, 1e9));
  if (s < 60) return fmt::format("{} s", s);
  if (s < 3600) return fmt::format("{} min", s / 60);
  if (s < 86400) return fmt::format("{} h {:02} min", s / 3600, s / 60 % 60);
  return fmt::format("{} d {:02} h", s / 86400, s / 3600 % 24);
}

std::string gpu_time_words(double gpu_s) {
  if (gpu_s < 60) return fmt::format("{:.1f} s", gpu_s);
  if (gpu_s < 3600) return fmt::format("{:.1f} min", gpu_s / 60);
  return fmt::format("{:.2f} h", gpu_s / 3600);
}

std::string date_words(double unix_s) {
  const auto when = std::time_t(std::clamp(unix_s, 0.0, 1e11));
  std::tm parts{};
  if (!::gmtime_r(&when, &parts)) return "-";
  return fmt::format("{:04}-{:02}-{:02} {:02}:{:02} UTC", parts.tm_year + 1900, parts.tm_mon + 1, parts.tm_mday,
                     parts.tm_hour, parts.tm_min);
}

}  // namespace gpuwire::server::web
