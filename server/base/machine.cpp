#include "server/base/machine.hpp"

#include <algorithm>
#include <charconv>
#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <string>
#include <string_view>

#include <fcntl.h>
#include <sys/resource.h>
#include <unistd.h>

namespace gpuwire::server {
namespace {

constexpr uint64_t kKib = 1024;

// Returns the sum of lines such as "VmData: 1234 kB", times `unit`. None: the file cannot be read.
template <class... Names>
std::optional<uint64_t> sum_of_lines(const std::string& path, uint64_t unit, Names... names) {
  std::ifstream file(path);
  if (!file) return std::nullopt;
  uint64_t bytes = 0;
  bool found = false;
  for (std::string line; std::getline(file, line);) {
    size_t colon = line.find(':');
    if (colon == std::string::npos || ((line.compare(0, colon, names) != 0) && ...)) continue;
    bytes += std::strtoull(line.c_str() + colon + 1, nullptr, 10) * unit;
    found = true;
  }
  return found ? std::optional(bytes) : std::nullopt;
}

// The bytes of /proc/PID/status that are read: its lists of processors and nodes grow with the machine, and follow
// these bytes.
constexpr size_t kStatusBytesMax = 4096;

// Returns the value behind a name that begins a line: "RssAnon: 1234 kB". 0: the line is missing, as for a process
// without memory.
uint64_t number_in(std::string_view lines, std::string_view name) {
  size_t at = lines.find(name);
  if (at == lines.npos) return 0;
  at = lines.find_first_not_of(" \t", at + name.size());
  uint64_t number = 0;
  if (at != lines.npos) std::from_chars(lines.data() + at, lines.data() + lines.size(), number);
  return number;
}

// "max" and unreadable text mean no limit.
uint64_t bound_in(const std::filesystem::path& file) {
  std::ifstream stream(file);
  uint64_t bytes = 0;
  return stream >> bytes ? bytes : UINT64_MAX;
}

// Returns the memory limit of this process's control groups (cgroups(7)), version 2 and 1.
uint64_t group_bytes() {
  std::ifstream groups("/proc/self/cgroup");
  uint64_t least = UINT64_MAX;
  for (std::string line; std::getline(groups, line);) {
    size_t first = line.find(':'), second = line.find(':', first + 1);
    if (first == std::string::npos || second == std::string::npos) continue;
    std::string controllers = line.substr(first + 1, second - first - 1), path = line.substr(second + 1);
    if (controllers.empty()) least = std::min(least, bound_in("/sys/fs/cgroup" + path + "/memory.max"));
    if (controllers == "memory")
      least = std::min(least, bound_in("/sys/fs/cgroup/memory" + path + "/memory.limit_in_bytes"));
  }
  return least;
}

std::string proc(pid_t process, const char* file) { return "/proc/" + std::to_string(process) + "/" + file; }

}  // namespace

uint64_t machine_bytes() {
  auto total = sum_of_lines("/proc/meminfo", kKib, "MemTotal");
  return std::min(total.value_or(0), group_bytes());
}

uint64_t available_bytes() { return sum_of_lines("/proc/meminfo", kKib, "MemAvailable").value_or(0); }

ProcessStatus::ProcessStatus(pid_t process) : file_(::open(proc(process, "status").c_str(), O_RDONLY | O_CLOEXEC)) {}

std::optional<ProcessStatus::Figures> ProcessStatus::read() const {
  char text[kStatusBytesMax];
  const ssize_t bytes = ::pread(file_.get(), text, sizeof text, 0);
  if (bytes <= 0) return std::nullopt;
  const std::string_view lines(text, size_t(bytes));
  return Figures{.own_bytes = kKib * (number_in(lines, "\nRssAnon:") + number_in(lines, "\nRssShmem:") +
                                      number_in(lines, "\nVmSwap:")),
                 .threads = number_in(lines, "\nThreads:")};
}

std::optional<uint64_t> own_bytes(pid_t process) {
  const auto figures = ProcessStatus(process).read();
  return figures ? std::optional(figures->own_bytes) : std::nullopt;
}

uint64_t data_bytes() { return sum_of_lines("/proc/self/status", kKib, "VmData").value_or(0); }

void set_niceness(pid_t process, int niceness) {
  std::error_code gone;
  for (const auto& thread : std::filesystem::directory_iterator(proc(process, "task"), gone))
    ::setpriority(PRIO_PROCESS, id_t(std::strtoul(thread.path().filename().c_str(), nullptr, 10)), niceness);
}

bool set_kill_order(pid_t process, int order) {
  std::ofstream file(proc(process, "oom_score_adj"));
  file << order << std::flush;
  return bool(file);
}

}  // namespace gpuwire::server
