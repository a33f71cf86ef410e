#include "server/cli/serve/metrics_process.hpp"

#include <algorithm>
#include <cerrno>
#include <csignal>
#include <cstring>
#include <utility>

#include <fcntl.h>
#include <fmt/format.h>
#include <spawn.h>
#include <spdlog/spdlog.h>
#include <sys/syscall.h>
#include <sys/wait.h>
#include <unistd.h>

extern char** environ;

namespace gpuwire::server {
namespace {

// Nothing in, text to the server's log, no other descriptor of the server's; the usual signals. An errno, or 0.
int spawn(const std::string& program, const std::vector<std::string>& arguments, pid_t& pid) {
  std::vector<char*> words{const_cast<char*>(program.c_str())};
  for (const std::string& argument : arguments) words.push_back(const_cast<char*>(argument.c_str()));
  words.push_back(nullptr);
  posix_spawn_file_actions_t actions;
  posix_spawnattr_t attributes;
  ::posix_spawn_file_actions_init(&actions);
  ::posix_spawn_file_actions_addopen(&actions, STDIN_FILENO, "/dev/null", O_RDONLY, 0);
  ::posix_spawn_file_actions_adddup2(&actions, STDERR_FILENO, STDOUT_FILENO);
  ::posix_spawn_file_actions_addclosefrom_np(&actions, STDERR_FILENO + 1);
  ::posix_spawnattr_init(&attributes);
  sigset_t none, all;
  ::sigemptyset(&none);
  ::sigfillset(&all);
  ::posix_spawnattr_setsigmask(&attributes, &none);
  ::posix_spawnattr_setsigdefault(&attributes, &all);
  ::posix_spawnattr_setflags(&attributes, POSIX_SPAWN_SETSIGMASK | POSIX_SPAWN_SETSIGDEF);
  int error = ::posix_spawn(&pid, program.c_str(), &actions, &attributes, words.data(), environ);
  ::posix_spawn_file_actions_destroy(&actions);
  ::posix_spawnattr_destroy(&attributes);
  return error;
}

}  // namespace

MetricsProcess::MetricsProcess(boost::asio::io_context& io, std::string program, std::vector<std::string> arguments)
    : program_(std::move(program)), arguments_(std::move(arguments)), process_(io), again_timer_(io) {
  start();
}

MetricsProcess::~MetricsProcess() {
  if (pid_ < 0) return;
  ::kill(pid_, SIGKILL);  // it holds nothing that has to be put in order
  ::waitpid(pid_, nullptr, 0);
}

void MetricsProcess::start() {
  if (int error = spawn(program_, arguments_, pid_)) {
    pid_ = -1;
    return again(fmt::format("cannot start {}: {}", program_, std::strerror(error)));
  }
  int descriptor = int(::syscall(SYS_pidfd_open, pid_, 0));
  if (descriptor < 0) {
    spdlog::warn("metrics: pidfd_open: {}; the process is not started again when it ends", std::strerror(errno));
    return;
  }
  process_.assign(descriptor);
  process_.async_wait(boost::asio::posix::stream_descriptor::wait_read,
                      lifetime_.guard([this](boost::system::error_code error) {
                        if (!error) ended();
                      }));
}

void MetricsProcess::ended() {
  int status = 0;
  if (::waitpid(std::exchange(pid_, -1), &status, 0) < 0) status = 0;
  process_.close();
  again(WIFSIGNALED(status) ? fmt::format("ended with signal {}", WTERMSIG(status))
                            : fmt::format("ended with exit code {}", WEXITSTATUS(status)));
}

void MetricsProcess::again(const std::string& why) {
  spdlog::error("metrics: {}; again in {} ms", why, delay_ms_);
  again_timer_.expires_after(std::chrono::milliseconds(delay_ms_));
  again_timer_.async_wait(lifetime_.guard([this](boost::system::error_code error) {
    if (!error) start();
  }));
  delay_ms_ = std::min(delay_ms_ * 2, kMetricsRestartMaxMs);
}

}  // namespace gpuwire::server
