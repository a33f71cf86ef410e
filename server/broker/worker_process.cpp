#include "server/broker/worker_process.hpp"

#include <algorithm>
#include <cerrno>
#include <csignal>
#include <cstring>

#include <fmt/format.h>
#include <sys/personality.h>
#include <sys/wait.h>

#include "server/broker/spawn.hpp"

extern char** environ;

namespace gpuwire::server {
namespace {

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
  std::vector<std::string> environment = environment_of(command);
  const AwayFromPrograms layout;
  auto pid = spawn_child(command.program, command.arguments, worker_end.get(), &environment);
  if (!pid) return tl::unexpected(pid.error());
  return std::unique_ptr<WorkerProcess>(new WorkerProcess(io, std::move(broker_end), *pid, std::move(said)));
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
