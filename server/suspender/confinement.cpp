#include "server/suspender/confinement.hpp"

#include <csignal>
#include <cstdlib>
#include <sstream>
#include <vector>

#include <sys/prctl.h>
#include <sys/resource.h>
#include <unistd.h>

#include "server/confinement/landlock.hpp"
#include "server/ipc/channel.hpp"

namespace gpuwire::server {
namespace {

// The system's libraries, and what the driver reads about the machine and about the processes that it moves.
constexpr const char* kReadable[] = {
    "/usr", "/lib", "/lib64", "/opt", "/etc/ld.so.cache", "/etc/nvidia", "/sys", "/proc", "/run/nvidia-persistenced"};
constexpr const char* kDevices[] = {"/dev/null", "/dev/zero", "/dev/urandom", "/dev/random"};

std::vector<PathRule> path_rules(const std::filesystem::path& library) {
  std::vector<PathRule> rules;
  for (const char* path : kReadable) rules.push_back({path, PathAccess::read});
  for (const char* path : kDevices) rules.push_back({path, PathAccess::device});
  rules.push_back({library.parent_path(), PathAccess::read});
  const char* list = std::getenv("LD_LIBRARY_PATH");
  std::stringstream folders(list ? list : "");
  for (std::string folder; std::getline(folders, folder, ':');)
    if (!folder.empty()) rules.push_back({folder, PathAccess::read});
  rules.push_back({"/dev/shm", PathAccess::write});
  rules.push_back({"/proc/self", PathAccess::write});  // the driver names its threads there
  std::error_code error;
  for (const auto& entry : std::filesystem::directory_iterator("/dev", error))
    if (entry.path().filename().string().starts_with("nvidia")) rules.push_back({entry.path(), PathAccess::device});
  return rules;
}

}  // namespace

tl::expected<std::string, std::string> confine_suspender(const std::filesystem::path& library, bool keeps_rights) {
  ::prctl(PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0);
  rlimit none{0, 0};
  ::setrlimit(RLIMIT_CORE, &none);
  ::close_range(ipc::kDescriptor + 1, ~0u, 0);
  for (int number : {SIGPIPE, SIGINT, SIGTERM, SIGHUP, SIGUSR2}) std::signal(number, SIG_IGN);
  // A driver that moves another process's memory has to reach that process.
  auto restricted = restrict_paths(path_rules(library), Network::none, Reach::others);
  if (!keeps_rights) drop_capabilities();
  ::prctl(PR_SET_DUMPABLE, 0, 0, 0, 0);         // other processes of this user may not take its channel
  ::prctl(PR_SET_PDEATHSIG, SIGKILL, 0, 0, 0);  // last: a change of credentials clears it
  return restricted;
}

}  // namespace gpuwire::server
