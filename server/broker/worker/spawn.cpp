#include "server/broker/worker/spawn.hpp"

#include <csignal>
#include <cstring>

#include <fcntl.h>
#include <fmt/format.h>
#include <spawn.h>
#include <sys/wait.h>
#include <unistd.h>

#include "server/ipc/channel.hpp"

extern char** environ;

namespace gpuwire::server {
namespace {

class SpawnSettings {
 public:
  SpawnSettings(int ipc_end, int output) {
    ::posix_spawn_file_actions_init(&actions_);
    ::posix_spawn_file_actions_addopen(&actions_, STDIN_FILENO, "/dev/null", O_RDONLY, 0);
    if (output >= 0) ::posix_spawn_file_actions_adddup2(&actions_, output, STDERR_FILENO);
    ::posix_spawn_file_actions_adddup2(&actions_, STDERR_FILENO, STDOUT_FILENO);
    ::posix_spawn_file_actions_adddup2(&actions_, ipc_end, ipc::kDescriptor);
    ::posix_spawn_file_actions_addclosefrom_np(&actions_, ipc::kDescriptor + 1);
    ::posix_spawnattr_init(&attributes_);
    sigset_t none, all;
    ::sigemptyset(&none);
    ::sigfillset(&all);
    ::posix_spawnattr_setsigmask(&attributes_, &none);
    ::posix_spawnattr_setsigdefault(&attributes_, &all);
    ::posix_spawnattr_setflags(&attributes_, POSIX_SPAWN_SETSIGMASK | POSIX_SPAWN_SETSIGDEF);
  }
  ~SpawnSettings() {
    ::posix_spawn_file_actions_destroy(&actions_);
    ::posix_spawnattr_destroy(&attributes_);
  }
  const posix_spawn_file_actions_t* actions() const { return &actions_; }
  const posix_spawnattr_t* attributes() const { return &attributes_; }

 private:
  posix_spawn_file_actions_t actions_;
  posix_spawnattr_t attributes_;
};

// Returns posix_spawn's form of the texts.
std::vector<char*> pointers(const std::vector<std::string>& texts) {
  std::vector<char*> pointers;
  for (const std::string& text : texts) pointers.push_back(const_cast<char*>(text.c_str()));
  pointers.push_back(nullptr);
  return pointers;
}

}  // namespace

tl::expected<pid_t, std::string> spawn_child(const std::string& program, const std::vector<std::string>& arguments,
                                             int ipc_end, int output, const std::vector<std::string>* environment) {
  std::vector<std::string> words{program};
  words.insert(words.end(), arguments.begin(), arguments.end());
  std::vector<char*> argv = pointers(words), envp;
  if (environment) envp = pointers(*environment);
  SpawnSettings settings(ipc_end, output);
  pid_t pid = -1;
  if (int error = ::posix_spawn(&pid, program.c_str(), settings.actions(), settings.attributes(), argv.data(),
                                environment ? envp.data() : environ))
    return tl::unexpected(fmt::format("cannot start {}: {}", program, std::strerror(error)));
  return pid;
}

std::string describe_status(int status) {
  if (WIFSIGNALED(status)) return fmt::format("signal {} ({})", WTERMSIG(status), ::strsignal(WTERMSIG(status)));
  return fmt::format("exit code {}", WEXITSTATUS(status));
}

}  // namespace gpuwire::server
