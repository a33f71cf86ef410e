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

tl::expected<std::unique_ptr<WorkerProcess>, std::string> WorkerProcess::spawn(boost::asio::io_context& io, const WorkerCommand& command, Events events) {
  OwnedDescriptor broker_end, worker_end;
  if (!open_handoff(broker_end, worker_end)) return tl::unexpected(fmt::format("socketpair for a worker: {}", std::strerror(errno)));
  std::vector<std::string> environment = environment_of(command);
  const AwayFromPrograms layout;
  auto pid = spawn_child(command.program, command.arguments, worker_end.get(), &environment);
  if (!pid) return tl::unexpected(pid.error());
  return std::unique_ptr<WorkerProcess>(new WorkerProcess(io, std::move(broker_end), *pid, std::move(events)));
}

WorkerProcess::WorkerProcess(boost::asio::io_context& io, OwnedDescriptor descriptor, pid_t pid, Events events)
    : pid_(pid), descriptor_(io, descriptor.release()), kill_timer_(io), pause_timer_(io), events_(std::move(events)), budget_(std::chrono::steady_clock::now()) {
  listen();
}

WorkerProcess::~WorkerProcess() {
  if (pid_ < 0) return;
  ::kill(pid_, SIGKILL);
  while (::waitpid(pid_, nullptr, 0) < 0 && errno == EINTR) {
  }
}

void WorkerProcess::listen() {
  descriptor_.async_wait(boost::asio::posix::stream_descriptor::wait_read, lifetime_.guard([this](boost::system::error_code error) {
    if (error) return;
    if (auto heard = hear(kWorkerMessagesPerTurn)) turn_over(*heard);
  }));
}

void WorkerProcess::turn_over(size_t heard) {
  switch (budget_.turn(heard, std::chrono::steady_clock::now())) {
    case MessageBudget::Verdict::go_on: return listen();
    case MessageBudget::Verdict::flood: return events_.floods(*this);
    case MessageBudget::Verdict::pause: break;
  }
  pause_timer_.expires_after(std::chrono::milliseconds(kWorkerPauseMs));
  pause_timer_.async_wait(lifetime_.guard([this](boost::system::error_code error) {
    if (!error) listen();
  }));
}

std::optional<size_t> WorkerProcess::hear(size_t messages_max) {
  for (size_t heard = 0; heard < messages_max; ++heard) {
    Handoff handoff;
    HandoffReceived received = receive_handoff(descriptor_.native_handle(), false, handoff);
    if (received == HandoffReceived::none_yet) return heard;
    if (received == HandoffReceived::closed) return std::nullopt;  // its end is reaped on SIGCHLD
    events_.said(*this, std::move(handoff));
  }
  return messages_max;
}

void WorkerProcess::kill_after(uint32_t ms) {
  kill_timer_.expires_after(std::chrono::milliseconds(ms));
  kill_timer_.async_wait(lifetime_.guard([this](boost::system::error_code error) {
    if (!error && pid_ >= 0) ::kill(pid_, SIGKILL);
  }));
}

std::optional<std::string> WorkerProcess::reap() {
  int status = 0;
  if (pid_ < 0 || ::waitpid(pid_, &status, WNOHANG) != pid_) return std::nullopt;
  pid_ = -1;
  hear(kWorkerLastMessagesMax);
  return describe_status(status);
}

}  // namespace gpuwire::server
