#include "server/control/client/socket_path.hpp"

#include <algorithm>
#include <cerrno>
#include <cstdlib>
#include <cstring>

#include <fmt/format.h>
#include <sys/stat.h>
#include <unistd.h>

#include "server/control/client/control_client.hpp"

namespace gpuwire::server {
namespace {

namespace fs = std::filesystem;

const fs::path kRootFolder = "/run/gpuwire";

fs::path user_folder() {
  const char* runtime = std::getenv("XDG_RUNTIME_DIR");
  if (runtime && *runtime == '/') return fs::path(runtime) / "gpuwire";
  return fmt::format("/tmp/gpuwire-{}", ::geteuid());
}

std::vector<fs::path> folders() {
  // The packaged server's own user has /run for its runtime folder.
  const fs::path own = user_folder();
  if (::geteuid() == 0 || own == kRootFolder) return {kRootFolder};
  return {kRootFolder, own};
}

}  // namespace

tl::expected<fs::path, std::string> own_runtime_folder() {
  // Users of tenants reach root's socket; a user's own server is for that user (and root).
  bool root = ::geteuid() == 0;
  fs::path folder = root ? kRootFolder : user_folder();
  if (::mkdir(folder.c_str(), 0700) == 0) ::chmod(folder.c_str(), root ? 0755 : 0700);
  struct stat facts {};
  if (::lstat(folder.c_str(), &facts) != 0)
    return tl::unexpected(fmt::format("no folder {} for sockets: {}", folder.string(), std::strerror(errno)));
  if (!S_ISDIR(facts.st_mode) || facts.st_uid != ::geteuid() || (facts.st_mode & 022))
    return tl::unexpected(
        fmt::format("{} is not a folder that only this user can write; no sockets there", folder.string()));
  return folder;
}

tl::expected<fs::path, std::string> default_control_socket() {
  return own_runtime_folder().map([](const fs::path& folder) { return folder / fmt::format("{}.sock", ::getpid()); });
}

std::vector<fs::path> running_control_sockets() {
  std::vector<fs::path> found;
  for (const fs::path& folder : folders()) {
    std::vector<fs::path> here;
    std::error_code error;
    for (fs::directory_iterator entry(folder, error), end; !error && entry != end; entry.increment(error)) {
      if (entry->path().extension() != ".sock") continue;
      if (ControlClient::connect(entry->path())) here.push_back(entry->path());
      else if (errno == ECONNREFUSED) ::unlink(entry->path().c_str());
    }
    std::sort(here.begin(), here.end());
    found.insert(found.end(), here.begin(), here.end());
  }
  return found;
}

tl::expected<fs::path, std::string> find_control_socket(const std::string& told) {
  if (!told.empty()) return told;
  if (const char* variable = std::getenv(kControlVariable); variable && *variable) return variable;
  std::vector<fs::path> running = running_control_sockets();
  if (running.size() == 1) return running.front();
  if (running.empty())
    return tl::unexpected(
        fmt::format("no server of root or this user runs on this machine (or it has a control socket elsewhere: "
                    "--control PATH, or {})",
                    kControlVariable));
  std::string paths;
  for (const fs::path& one : running) paths += "\n  " + one.string();
  return tl::unexpected(
      fmt::format("{} servers run on this machine; say which with --control PATH:{}", running.size(), paths));
}

}  // namespace gpuwire::server
