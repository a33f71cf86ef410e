#include "client_stub/launcher/loader_folders.hpp"

#include <glob.h>

#include <array>
#include <fstream>
#include <string>

namespace gpuwire::launcher {

namespace {

namespace fs = std::filesystem;

// The folders that the loaders of Debian, Ubuntu and RHEL search after the configured ones, and the folders in which
// NVIDIA's container toolkit and images put libraries.
constexpr std::array kUsualFolders = {
    "/usr/lib/x86_64-linux-gnu", "/lib/x86_64-linux-gnu", "/usr/lib64", "/lib64", "/usr/lib", "/lib",
    "/usr/local/nvidia/lib64",   "/usr/local/cuda/compat"};
constexpr std::array kLibraries = {"libcuda.so.1", "libnvidia-ml.so.1"};
// Files that include each other in a ring end here.
constexpr unsigned kIncludesDeepMax = 8;

std::string trimmed(const std::string& line) {
  constexpr const char* kBlanks = " \t\r";
  const std::string text = line.substr(0, line.find('#'));
  const size_t first = text.find_first_not_of(kBlanks);
  return first == std::string::npos ? "" : text.substr(first, text.find_last_not_of(kBlanks) + 1 - first);
}

fs::path below(const fs::path& root, const fs::path& inside) { return root / inside.relative_path(); }

void read_configuration(const fs::path& root, const fs::path& file, unsigned depth, std::vector<fs::path>& folders) {
  if (depth > kIncludesDeepMax) return;
  std::ifstream in(file);
  for (std::string line; std::getline(in, line);) {
    const std::string text = trimmed(line);
    if (!text.starts_with("include") || text.find_first_of(" \t") != 7) {
      if (text.starts_with('/')) folders.emplace_back(text);
      continue;
    }
    const fs::path pattern = trimmed(text.substr(7));
    glob_t found{};
    const fs::path whole = pattern.is_absolute() ? below(root, pattern) : file.parent_path() / pattern;
    if (glob(whole.c_str(), 0, nullptr, &found) == 0)
      for (size_t i = 0; i < found.gl_pathc; ++i) read_configuration(root, found.gl_pathv[i], depth + 1, folders);
    globfree(&found);
  }
}

bool is_of_gpuwire(const fs::path& folder, const fs::path& own) {
  std::error_code error;
  return fs::equivalent(folder, own, error) || fs::exists(folder / "commands/gpuwire-run", error);
}

}  // namespace

std::vector<fs::path> loader_folders(const fs::path& root) {
  std::vector<fs::path> folders;
  read_configuration(root, below(root, "/etc/ld.so.conf"), 0, folders);
  folders.insert(folders.end(), kUsualFolders.begin(), kUsualFolders.end());
  return folders;
}

std::optional<fs::path> driver_library(const fs::path& root, const fs::path& own) {
  for (const fs::path& inside : loader_folders(root)) {
    const fs::path folder = below(root, inside);
    for (const char* library : kLibraries) {
      std::error_code error;
      const fs::path file = folder / library;
      // A link in an image may name a path that exists only inside the image.
      if (fs::exists(fs::symlink_status(file, error)) && !is_of_gpuwire(folder, own)) return file;
    }
  }
  return std::nullopt;
}

}  // namespace gpuwire::launcher
