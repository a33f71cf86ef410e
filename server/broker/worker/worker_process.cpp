#include "server/broker/worker/worker_process.hpp"

#include <algorithm>
#include <cerrno>
#include <csignal>
#include <cstring>
#include <exception>

#include <fmt/format.h>
#include <poll.h>
#include <spdlog/spdlog.h>
#include <sys/personality.h>
#include <sys/syscall.h>
#include <sys/wait.h>
#include <unistd.h>

#include "server/broker/limits.hpp"
#include "server/broker/worker/spawn.hpp"
#include "server/confinement/real_user.hpp"
#include "server/ipc/limits.hpp"

extern char** environ;

namespace gpuwire::server {
namespace {

std::vector<std::string> environment_of(const WorkerCommand& command) {
  std::vector<std::string> variables;
  for (char** own = environ; *own; ++own) {
    std::string_view variable = *own;
    std::string_view name = variable.substr(0, variable.find('='));
    bool replaced = std::any_of(command.environment.begin(), command.environment.end(),
                                [&](const auto& one) { return one.first == name; });
    if (!replaced) variables.emplace_back(variable);
  }
  for (const auto& [name, value] : command.environment) variables.push_back(name + "=" + value);
  return variables;
}

// While an AwayFromPrograms exists, processes that this thread starts map memory from a third of the address space
// upwards, and not from its top downwards as programs do. Device addresses come from the worker's mappings, and the
// client has to have the same range free: with this layout the two hardly ever overlap (personality(2),
// ADDR_COMPAT_LAYOUT).
class AwayFromPrograms {
 public:
  AwayFromPrograms() : before_(::personality(kQuery)) {
#if !defined(__SANITIZE_THREAD__)  // its runtime works with the usual layout only
    if (before_ != -1) ::personality(static_cast<unsigned long>(before_) | ADDR_COMPAT_LAYOUT);
#endif
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

// `user`: set to the worker's own user, if it gets one.
tl::expected<pid_t, std::string> start(const WorkerCommand& command, int ipc_end, int output,
                                       std::optional<WorkerUsers::Loan>& user) {
  const std::vector<std::string> environment = environment_of(command);
  const AwayFromPrograms layout;
  if (!command.users) return spawn_child(command.program, command.arguments, ipc_end, output, &environment);
  user = command.users->lend();
  std::vector<std::string> arguments = command.arguments;
  arguments.insert(arguments.end(), {"--real-user", std::to_string(user->user())});
  const PassOnUserRight right;
  return spawn_child(command.program, arguments, ipc_end, output, &environment);
}

void reap_now(pid_t child) {
  while (::waitpid(child, nullptr, 0) < 0 && errno == EINTR) {}
}

}  // namespace

tl::expected<std::unique_ptr<WorkerProcess>, std::string> WorkerProcess::spawn(boost::asio::io_context& io,
                                                                               const WorkerCommand& command,
                                                                               Events events) {
  OwnedDescriptor broker_end, worker_end;
  if (!ipc::open_pair(broker_end, worker_end))
    return tl::unexpected(fmt::format("socketpair for a worker: {}", std::strerror(errno)));
  auto pipe = ChildPipe::open();
  if (!pipe) return tl::unexpected(pipe.error());
  std::optional<WorkerUsers::Loan> user;
  auto pid = start(command, worker_end.get(), pipe->writes.get(), user);
  if (!pid) return tl::unexpected(pid.error());
  OwnedDescriptor process(int(::syscall(SYS_pidfd_open, *pid, 0)));
  // The user may have no epoll watch left (epoll_ctl: ENOSPC): that is a failed start, and does not end the broker.
  try {
    auto worker = std::unique_ptr<WorkerProcess>(new WorkerProcess(io, std::move(broker_end), std::move(process), *pid,
                                                                   true, std::move(pipe->reads), std::move(events)));
    worker->user_ = std::move(user);
    return worker;
  } catch (const boost::system::system_error& error) {
    ::kill(*pid, SIGKILL);
    reap_now(*pid);
    return tl::unexpected(fmt::format("a worker cannot be watched: {}", error.code().message()));
  }
}

std::unique_ptr<WorkerProcess> WorkerProcess::adopt(boost::asio::io_context& io, OwnedDescriptor descriptor,
                                                    OwnedDescriptor process, pid_t pid, WorkerUsers* users,
                                                    Events events) {
  auto worker = std::unique_ptr<WorkerProcess>(
      new WorkerProcess(io, std::move(descriptor), std::move(process), pid, false, {}, std::move(events)));
  if (users) worker->user_ = users->adopt(pid);
  return worker;
}

WorkerProcess::WorkerProcess(boost::asio::io_context& io, OwnedDescriptor descriptor, OwnedDescriptor process,
                             pid_t pid, bool child, OwnedDescriptor output, Events events)
    : pid_(pid),
      child_(child),
      events_(std::move(events)),
      channel_(io, std::move(descriptor), ipc::Speaker::worker, ipc::kWorkerWaitingMax,
               ipc::EventChannel::Trust::budget,
               {.on_message = [this](ipc::Message message) { events_.on_message(*this, std::move(message)); },
                .over =
                    [this](const std::string& what) {
                      if (!what.empty()) events_.distrusted(*this, what);  // else SIGCHLD reports its end
                    },
                .unwelcome = events_.unwelcome}),
      process_(io),
      kill_timer_(io) {
  if (process) {
    process_.assign(process.get());
    process.release();
  }
  if (output)
    output_.emplace(io, std::move(output),
                    [this](const std::string& line) { spdlog::warn("{}: its process wrote: {}", label, line); });
  if (child_) return;
  process_.async_wait(boost::asio::posix::stream_descriptor::wait_read,
                      lifetime_.guard([this](boost::system::error_code error) {
                        if (!error && events_.gone) events_.gone();
                      }));
}

WorkerProcess::~WorkerProcess() {
  const bool serves = state == State::reserved || state == State::serving;
  if (let_go_ || (serves && pid_ >= 0 && std::uncaught_exceptions() > 0)) return;  // the next broker continues it
  if (pid_ >= 0) {
    kill();
    if (child_) reap_now(pid_);
  }
  channel_.discard_unread();
}

// Kills by process id only if the process is a child, which only this broker reaps.
void WorkerProcess::kill() {
  if (child_) ::kill(pid_, SIGKILL);
  else ::syscall(SYS_pidfd_send_signal, process_.native_handle(), SIGKILL, nullptr, 0);
}

void WorkerProcess::kill_after(uint32_t ms) {
  kill_timer_.expires_after(std::chrono::milliseconds(ms));
  kill_timer_.async_wait(lifetime_.guard([this](boost::system::error_code error) {
    if (!error && pid_ >= 0) kill();
  }));
}

std::optional<std::string> WorkerProcess::reap() {
  int status = 0;
  pollfd ended{process_.is_open() ? process_.native_handle() : -1, POLLIN, 0};
  if (pid_ < 0 || (child_ ? ::waitpid(pid_, &status, WNOHANG) != pid_ : ::poll(&ended, 1, 0) != 1)) return std::nullopt;
  pid_ = -1;
  channel_.hear_rest(kWorkerLastMessagesMax);
  if (output_) output_->read_rest();
  return child_ ? describe_status(status) : "a status that its parent, an earlier broker, has not lived to learn";
}

}  // namespace gpuwire::server
