#include "client_stub/session/environment.hpp"

#include <fcntl.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <cstdlib>
#include <string>
#include <string_view>
#include <vector>

namespace gpuwire::client {
namespace {

constexpr std::string_view kPrefix = "GPUWIRE_";
constexpr const char* kServer = "GPUWIRE_SERVER";
constexpr std::array<std::string_view, 3> kOthers{"HOME", "XDG_CONFIG_HOME", "XDG_STATE_HOME"};
// The bound of the program's initial environment; variables beyond it are ignored.
constexpr size_t kFirstBytesMax = 4u << 20;
// The bound of the attached settings; the rest of a longer file is ignored.
constexpr size_t kAttachedBytesMax = 64u << 10;

bool is_setting(std::string_view name) {
  if (name.starts_with(kPrefix)) return true;
  for (std::string_view other : kOthers) {
    if (name == other) return true;
  }
  return false;
}

// Lines NAME=VALUE of settings; other lines are dropped.
class Settings {
 public:
  void add(std::string_view line) {
    const size_t equals = line.find('=');
    if (equals != std::string_view::npos && is_setting(line.substr(0, equals))) lines_.emplace_back(line);
  }
  const char* find(std::string_view name) const noexcept {
    for (const std::string& line : lines_) {
      if (line.size() > name.size() && line[name.size()] == '=' && line.starts_with(name))
        return line.c_str() + name.size() + 1;
    }
    return nullptr;
  }

 private:
  std::vector<std::string> lines_;
};

// Never destroyed: threads of the program may still call while it exits. Null until keep_settings().
const Settings* g_loaded = nullptr;
// As g_loaded; null also if the program was started with its own server.
const Settings* g_attached = nullptr;

// The lines of a file, each of which ends with `line_end`; none if the file does not exist.
Settings read_settings(const char* path, char line_end, size_t bytes_max) {
  Settings settings;
  const int file = ::open(path, O_RDONLY | O_CLOEXEC);
  if (file < 0) return settings;
  std::string text;
  char piece[4096];
  for (ssize_t got = 0; text.size() < bytes_max && (got = ::read(file, piece, sizeof piece)) > 0;)
    text.append(piece, size_t(got));
  ::close(file);
  for (size_t at = 0; at < text.size();) {
    const size_t end = std::min(text.find(line_end, at), text.size());
    settings.add(std::string_view(text).substr(at, end - at));
    at = end + 1;
  }
  return settings;
}

// The kernel shows the memory of the program's initial environment. A program that has written its title over that
// memory has its environment elsewhere, or none.
const Settings& first_settings() {
  static const Settings* const first = new Settings(read_settings("/proc/self/environ", '\0', kFirstBytesMax));
  return *first;
}

}  // namespace

const char* setting(const char* name) noexcept {
  if (const char* value = std::getenv(name)) return value;
  if (!g_loaded) return nullptr;
  try {
    if (const char* value = g_loaded->find(name)) return value;
    if (const char* value = first_settings().find(name)) return value;
    if (!g_attached || !std::string_view(name).starts_with(kPrefix)) return nullptr;
    // Either all of them or none: an identity for one server must not be sent to another.
    if (std::getenv(kServer) || g_loaded->find(kServer) || first_settings().find(kServer)) return nullptr;
    return g_attached->find(name);
  } catch (...) {  // no memory
    return nullptr;
  }
}

void keep_settings(const char* attached) noexcept {
  if (g_loaded) return;
  try {
    auto* loaded = new Settings;
    for (char** line = environ; line && *line; ++line) loaded->add(*line);
    if (!loaded->find(kServer)) g_attached = new Settings(read_settings(attached, '\n', kAttachedBytesMax));
    g_loaded = loaded;
  } catch (...) {  // no memory: the environment alone counts
  }
}

}  // namespace gpuwire::client
