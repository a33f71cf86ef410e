#include "server/broker/worker_process.hpp"

#include <algorithm>
#include <cerrno>
#include <csignal>
#include <cstring>

#include <fcntl.h>
#include <fmt/format.h>
#include <spawn.h>
#include <sys/personality.h>
#include <sys/wait.h>

extern char** environ;

namespace gpuwire::server {
namespace {

// The child's descriptors and signals: nothing in, text to the broker's stderr, the pair at kHandoffDescriptor, no other.
class SpawnSettings {
 public:
  explicit SpawnSettings(int worker_end) {
    ::posix_spawn_file_actions_init(&actions_);
    ::posix_spawn_file_actions_addopen(&actions_, STDIN_FILENO, "/dev/null", O_RDONLY, 0);
    ::posix_spawn_file_actions_adddup2(&actions_, STDERR_FILENO, STDOUT_FILENO);
    ::posix_spawn_file_actions_adddup2(&actions_, worker_end, kHandoffDescriptor);
    ::posix_spawn_file_actions_addclosefrom_np(&actions_, kHandoffDescriptor + 1);
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

std::string describe_status(int status) {
  if (WIFSIGNALED(status)) return fmt::format("signal {} ({})", WTERMSIG(status), ::strsignal(WTERMSIG(status)));
  return fmt::format("exit code {}", WEXITSTATUS(status));
}

std::vector<std::string> environment_of(const WorkerCommand& command) {
  std::vector<std::string> variables;
  for (char** own = environ; *own; ++own) {
    std::string_view variable = *own;
    std::string_view name = variable.substr(0, variable.find('='));
    bool replaced = std::any_of(command.environment.begin(), command.environment.end(), [&](const auto& one) { return one.first == name; });
    if (!replaced) variables.emplace_back(variable);
  }
  for (const auto& [name, value] : command.environment) variables.push_back(name + "=" + value);
  return variables;
}

// While it lives, processes started by this thread map memory from a third of the address space upwards, and not from its top downwards as
// programs do. Device addresses come from the worker's mappings, and every client has to keep the same range free: this way the two hardly
// ever meet (personality(2), ADDR_COMPAT_LAYOUT).
class AwayFromPrograms {
 public:
  AwayFromPrograms() : before_(::personality(kQuery)) {
    if (before_ != -1) ::personality(static_cast<unsigned long>(before_) | ADDR_COMPAT_LAYOUT);
  }
  ~AwayFromPrograms() {
    if (before_ != -1) ::personality(static_cast<unsigned long>(before_));
  }
  AwayFromPrograms(const AwayFromPrograms&) = delete;
  AwayFromPrograms& operator=(const AwayFromPrograms&) = delete;

 private:
  static constexpr unsigned long kQuery = 0xffffffff;
  int before_;
};

}  // namespace

tl::expected<std::unique_ptr<WorkerProcess>, std::string> WorkerProcess::spawn(boost::asio::io_context& io, const WorkerCommand& command, Said said) {
  OwnedDescriptor broker_end, worker_end;
  if (!open_handoff(broker_end, worker_end)) return tl::unexpected(fmt::format("socketpair for a worker: {}", std::strerror(errno)));
  std::vector<char*> arguments{const_cast<char*>(command.program.c_str())};
  for (const std::string& argument : command.arguments) arguments.push_back(const_cast<char*>(argument.c_str()));
  arguments.push_back(nullptr);
  std::vector<std::string> kept = environment_of(command);
  std::vector<char*> environment;
  for (std::string& variable : kept) environment.push_back(variable.data());
  environment.push_back(nullptr);
  SpawnSettings settings(worker_end.get());
  pid_t pid = -1;
  const AwayFromPrograms layout;
  if (int error = ::posix_spawn(&pid, command.program.c_str(), settings.actions(), settings.attributes(), arguments.data(), environment.data()))
    return tl::unexpected(fmt::format("cannot start {}: {}", command.program, std::strerror(error)));
  return std::unique_ptr<WorkerProcess>(new WorkerProcess(io, std::move(broker_end), pid, std::move(said)));
}

WorkerProcess::WorkerProcess(boost::asio::io_context& io, OwnedDescriptor descriptor, pid_t pid, Said said)
    : pid_(pid), descriptor_(io, descriptor.release()), kill_timer_(io), said_(std::move(said)) {
  listen();
}

WorkerProcess::~WorkerProcess() {
  *alive_ = false;
  if (pid_ < 0) return;
  ::kill(pid_, SIGKILL);
  while (::waitpid(pid_, nullptr, 0) < 0 && errno == EINTR) {
  }
}

void WorkerProcess::listen() {
  descriptor_.async_wait(boost::asio::posix::stream_descriptor::wait_read, [this, alive = alive_](boost::system::error_code error) {
    if (error || !*alive) return;
    if (hear()) listen();
  });
}

bool WorkerProcess::hear() {
  for (;;) {
    Handoff handoff;
    HandoffReceived received = receive_handoff(descriptor_.native_handle(), false, handoff);
    if (received == HandoffReceived::none_yet) return true;
    if (received == HandoffReceived::closed) return false;  // its end is reaped on SIGCHLD
    said_(*this, std::move(handoff));
  }
}

void WorkerProcess::kill_after(uint32_t ms) {
  kill_timer_.expires_after(std::chrono::milliseconds(ms));
  kill_timer_.async_wait([this, alive = alive_](boost::system::error_code error) {
    if (!error && *alive && pid_ >= 0) ::kill(pid_, SIGKILL);
  });
}

std::optional<std::string> WorkerProcess::reap() {
  int status = 0;
  if (pid_ < 0 || ::waitpid(pid_, &status, WNOHANG) != pid_) return std::nullopt;
  pid_ = -1;
  hear();
  return describe_status(status);
}

}  // namespace gpuwire::server
