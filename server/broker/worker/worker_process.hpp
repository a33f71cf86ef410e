// One worker process as the broker sees it.
#pragma once

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
#include "server/ipc/ipc_message.hpp"
#include "server/ipc/message_budget.hpp"

namespace gpuwire::server {

struct WorkerCommand {
  std::string program;
  std::vector<std::string> arguments;                            // without the program's name
  std::vector<std::pair<std::string, std::string>> environment;  // beside, or in place of, the broker's own variables
};

// Owns the process, one that this program has started or one that an earlier broker has: when it is destroyed, the
// process is killed, and reaped if it is a child.
class WorkerProcess {
 public:
  // None may destroy the WorkerProcess.
  struct Events {
    std::function<void(WorkerProcess&, IpcMessage)> said;  // a message arrived
    std::function<void(WorkerProcess&)> floods;            // it says more than it may, and is not listened to any more
    std::function<void()> gone = {};  // one that was adopted has ended; children are told of by SIGCHLD
  };

  // The error names the program and the cause.
  static tl::expected<std::unique_ptr<WorkerProcess>, std::string> spawn(boost::asio::io_context& io,
                                                                         const WorkerCommand& command, Events events);
  // One that serves a session already. `process`: a pidfd.
  static std::unique_ptr<WorkerProcess> adopt(boost::asio::io_context& io, OwnedDescriptor descriptor,
                                              OwnedDescriptor process, pid_t pid, Events events);
  ~WorkerProcess();
  WorkerProcess(const WorkerProcess&) = delete;
  WorkerProcess& operator=(const WorkerProcess&) = delete;

  pid_t pid() const { return pid_; }
  // The broker's end of the pair, and the process: for who keeps them, too.
  int descriptor() { return descriptor_.native_handle(); }
  int process() { return process_.native_handle(); }
  // It goes on when this object goes.
  void let_go() { pid_ = -1; }
  bool send(const IpcMessage& message) { return send_ipc_message(descriptor_.native_handle(), message); }
  // Kills the process when it has not ended after `ms`. A later call replaces an earlier one.
  void kill_after(uint32_t ms);
  void cancel_kill() { kill_timer_.cancel(); }
  // Not empty once the process has ended: how ("exit code 1", "signal 11 (Segmentation fault)"). Reads what it said
  // last before that.
  std::optional<std::string> reap();

  // --- the pool's notes ---
  enum class State : uint8_t { starting, ready, reserved, serving, ending };
  State state = State::starting;
  scheduler::SessionId session{};   // while reserved or serving
  std::string tenant;               // of that session
  std::string label;                // "session 0123abcd from 127.0.0.1:4711", for logs
  std::string reason;               // what it said about its own end
  std::string stop_reason;          // why it was told to end the session
  unsigned notes = 0;               // that were logged
  uint32_t end_cause = UINT32_MAX;  // it has not said

 private:
  WorkerProcess(boost::asio::io_context& io, OwnedDescriptor descriptor, OwnedDescriptor process, pid_t pid, bool child,
                Events events);
  void listen();
  void kill();
  void turn_over(size_t heard);
  // Gives away what has arrived, so many messages at most. How many there were; nothing: none will come any more.
  std::optional<size_t> hear(size_t messages_max);

  pid_t pid_;
  const bool child_;
  boost::asio::posix::stream_descriptor descriptor_, process_;
  boost::asio::steady_timer kill_timer_, pause_timer_;
  const Events events_;
  MessageBudget budget_;
  Lifetime lifetime_;
};

}  // namespace gpuwire::server
