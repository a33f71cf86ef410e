// WorkerProcess is the broker's side of one worker process.
#pragma once

#include <chrono>
#include <functional>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include <boost/asio/io_context.hpp>
#include <boost/asio/posix/stream_descriptor.hpp>
#include <boost/asio/steady_timer.hpp>
#include <sys/types.h>
#include <tl/expected.hpp>

#include "scheduler/types.hpp"
#include "server/base/lifetime.hpp"
#include "server/broker/worker/child_output.hpp"
#include "server/broker/worker/worker_users.hpp"
#include "server/ipc/event_channel.hpp"

namespace gpuwire::server {

struct WorkerCommand {
  std::string program;
  // Without the program's name.
  std::vector<std::string> arguments;
  // Beside, or in place of, the broker's own variables.
  std::vector<std::pair<std::string, std::string>> environment;
  // Outlives the workers; null: their real user is the broker's.
  WorkerUsers* users = nullptr;
};

// A WorkerProcess owns its process, which this program or an earlier broker has started. The destructor kills the
// process, and reaps it if it is a child. While an exception unwinds the stack, a process that serves a session is
// released instead: the error is the broker's, and the next broker adopts the session.
class WorkerProcess {
 public:
  // The handlers must not destroy the WorkerProcess.
  struct Events {
    // A message arrived.
    std::function<void(WorkerProcess&, ipc::Message)> on_message;
    // Its messages are not trusted or read any more; `what` is its violation, as EventChannel::Events::over has it.
    std::function<void(WorkerProcess&, const std::string& what)> distrusted;
    // The worker has sent a descriptor that must not be closed on this thread (ipc::Channel::only_shareable).
    std::function<void(OwnedDescriptor)> unwelcome = {};
    // An adopted process has ended; SIGCHLD reports children.
    std::function<void()> gone = {};
  };

  // The error names the program and the cause: no process, or no room to watch one.
  static tl::expected<std::unique_ptr<WorkerProcess>, std::string> spawn(boost::asio::io_context& io,
                                                                         const WorkerCommand& command, Events events);
  // Takes over a process that serves a session. `process`: a pidfd. `users`: as in WorkerCommand.
  static std::unique_ptr<WorkerProcess> adopt(boost::asio::io_context& io, OwnedDescriptor descriptor,
                                              OwnedDescriptor process, pid_t pid, WorkerUsers* users, Events events);
  ~WorkerProcess();
  WorkerProcess(const WorkerProcess&) = delete;
  WorkerProcess& operator=(const WorkerProcess&) = delete;

  pid_t pid() const { return pid_; }
  // The broker's end of the pair, and the pidfd; the keeper gets copies of both.
  int descriptor() const { return channel_.descriptor(); }
  int process() { return process_.native_handle(); }
  // Lets the process outlive this object.
  void let_go() {
    pid_ = -1;
    let_go_ = true;
  }
  // As Channel::send().
  bool send(ipc::Message&& message) { return channel_.send(std::move(message)); }
  // Whether the worker has read all its messages.
  bool has_read_all() const { return channel_.read_by_other_end(); }
  // Kills the process when it has not ended after `ms`. A later call replaces an earlier one.
  void kill_after(uint32_t ms);
  void cancel_kill() { kill_timer_.cancel(); }
  // Returns how the process has ended ("exit code 1", "signal 11 (Segmentation fault)"), after reading its last
  // messages; nothing while it runs.
  std::optional<std::string> reap();

  // --- the pool's fields ---
  enum class State : uint8_t { starting, ready, reserved, serving, ending };
  State state = State::starting;
  std::chrono::steady_clock::time_point start_began;
  // While reserved or serving.
  scheduler::SessionId session{};
  // The tenant of that session.
  std::string tenant;
  // "session 0123abcd from 127.0.0.1:4711", for logs.
  std::string label;
  // Its own report of its end.
  std::string reason;
  // The reason of the order to end the session.
  std::string stop_reason;
  // The number of notes that it sent.
  uint64_t notes = 0;
  // Its client has begun the session, as it said.
  bool begun = false;
  // As it reported.
  std::optional<EndCause> end_cause;

 private:
  WorkerProcess(boost::asio::io_context& io, OwnedDescriptor descriptor, OwnedDescriptor process, pid_t pid, bool child,
                OwnedDescriptor output, Events events);
  void kill();

  // Below 0: it has been reaped, or let go.
  pid_t pid_;
  const bool child_;
  bool let_go_ = false;
  const Events events_;
  ipc::EventChannel channel_;
  std::optional<WorkerUsers::Loan> user_;
  // The output of a child; an adopted process's output ended with its first broker.
  std::optional<ChildOutput> output_;
  boost::asio::posix::stream_descriptor process_;
  boost::asio::steady_timer kill_timer_;
  Lifetime lifetime_;
};

}  // namespace gpuwire::server
