#include "server/cli/serve/folder_check.hpp"

#include <cerrno>
#include <cstdlib>
#include <cstring>
#include <system_error>

#include <fcntl.h>
#include <fmt/format.h>
#include <unistd.h>

namespace gpuwire::server {

namespace fs = std::filesystem;

std::string wrong_with_making(const fs::path& folder) {
  std::string name = (folder / ".gpuwire-check-XXXXXX").string();
  const int file = ::mkostemp(name.data(), O_CLOEXEC);
  if (file >= 0) {
    ::close(file);
    ::unlink(name.c_str());
    return {};
  }
  const int error = errno;
  // /proc returns ENOENT for an existing folder.
  const bool takes_none = error == ENOENT && ::access(folder.c_str(), F_OK) == 0;
  return fmt::format("{} cannot be written: {}", folder.string(),
                     takes_none ? "its file system takes no files" : std::strerror(error));
}

std::string wrong_with_folder(const fs::path& folder) {
  std::error_code error;
  fs::path there = fs::absolute(folder, error);
  while (!fs::exists(there, error) && there.has_relative_path()) there = there.parent_path();
  if (!fs::is_directory(there, error)) return fmt::format("{} is not a folder", there.string());
  const std::string wrong = wrong_with_making(there);
  return wrong.empty() ? wrong : fmt::format("{}: {}", folder.string(), wrong);
}

}  // namespace gpuwire::server
