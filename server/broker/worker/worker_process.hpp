// One worker process as the broker sees it.
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
  std::vector<std::string> arguments;                            // without the program's name
  std::vector<std::pair<std::string, std::string>> environment;  // beside, or in place of, the broker's own variables
  WorkerUsers* users = nullptr;  // outlives the workers; null: their real user is the broker's
};

// Owns the process, one that this program has started or one of an earlier broker. The destructor kills the process,
// and reaps it if it is a child. While an exception unwinds the stack, a process that serves a session is released
// instead: the error is the broker's, and the next broker adopts the session.
class WorkerProcess {
 public:
  // None may destroy the WorkerProcess.
  struct Events {
    std::function<void(WorkerProcess&, ipc::Message)> on_message;  // a message arrived
    // Its messages are not trusted or read any more; `what` is its violation, as EventChannel::Events::over has it.
    std::function<void(WorkerProcess&, const std::string& what)> distrusted;
    // A descriptor that it has sent and that may not be closed here (ipc::Channel::only_shareable).
    std::function<void(OwnedDescriptor)> unwelcome = {};
    std::function<void()> gone = {};  // an adopted one has ended; SIGCHLD reports children
  };

  // The error names the program and the cause: no process, or no room to watch one.
  static tl::expected<std::unique_ptr<WorkerProcess>, std::string> spawn(boost::asio::io_context& io,
                                                                         const WorkerCommand& command, Events events);
  // One that serves a session already. `process`: a pidfd. `users`: as WorkerCommand's.
  static std::unique_ptr<WorkerProcess> adopt(boost::asio::io_context& io, OwnedDescriptor descriptor,
                                              OwnedDescriptor process, pid_t pid, WorkerUsers* users, Events events);
  ~WorkerProcess();
  WorkerProcess(const WorkerProcess&) = delete;
  WorkerProcess& operator=(const WorkerProcess&) = delete;

  pid_t pid() const { return pid_; }
  // The broker's end of the pair, and the process: for the keeper, too.
  int descriptor() const { return channel_.descriptor(); }
  int process() { return process_.native_handle(); }
  // It goes on when this object goes.
  void let_go() {
    pid_ = -1;
    let_go_ = true;
  }
  // As Channel's.
  bool send(ipc::Message&& message) { return channel_.send(std::move(message)); }
  // It has read everything that it was sent.
  bool has_read_all() const { return channel_.read_by_other_end(); }
  // Kills the process when it has not ended after `ms`. A later call replaces an earlier one.
  void kill_after(uint32_t ms);
  void cancel_kill() { kill_timer_.cancel(); }
  // Not empty once the process has ended: how ("exit code 1", "signal 11 (Segmentation fault)"). Reads its last
  // messages before that.
  std::optional<std::string> reap();

  // --- the pool's notes ---
  enum class State : uint8_t { starting, ready, reserved, serving, ending };
  State state = State::starting;
  std::chrono::steady_clock::time_point start_began;
  scheduler::SessionId session{};     // while reserved or serving
  std::string tenant;                 // of that session
  std::string label;                  // "session 0123abcd from 127.0.0.1:4711", for logs
  std::string reason;                 // its own report of its end
  std::string stop_reason;            // the reason why it was told to end the session
  uint64_t notes = 0;                 // that it sent
  bool begun = false;                 // its client has begun the session, as it said
  std::optional<EndCause> end_cause;  // its messages

 private:
  WorkerProcess(boost::asio::io_context& io, OwnedDescriptor descriptor, OwnedDescriptor process, pid_t pid, bool child,
                OwnedDescriptor output, Events events);
  void kill();

  pid_t pid_;  // below 0: it has been reaped, or let go
  const bool child_;
  bool let_go_ = false;
  const Events events_;
  ipc::EventChannel channel_;
  std::optional<WorkerUsers::Loan> user_;
  std::optional<ChildOutput> output_;  // of a child; an adopted one's went with the broker that has started it
  boost::asio::posix::stream_descriptor process_;
  boost::asio::steady_timer kill_timer_;
  Lifetime lifetime_;
};

}  // namespace gpuwire::server
