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
#include "server/ipc/event_channel.hpp"

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
    std::function<void(WorkerProcess&, ipc::Message)> said;  // a message arrived
    // What it says is not believed any more, and not listened to; `what` it has said, as EventChannel::Events::over.
    std::function<void(WorkerProcess&, const std::string& what)> distrusted;
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
  int descriptor() const { return channel_.descriptor(); }
  int process() { return process_.native_handle(); }
  // It goes on when this object goes.
  void let_go() { pid_ = -1; }
  // As Channel's.
  bool send(ipc::Message&& message) { return channel_.send(std::move(message)); }
  // It has read everything that it was sent.
  bool has_read_all() const { return channel_.read_by_other_end(); }
  // Kills the process when it has not ended after `ms`. A later call replaces an earlier one.
  void kill_after(uint32_t ms);
  void cancel_kill() { kill_timer_.cancel(); }
  // Not empty once the process has ended: how ("exit code 1", "signal 11 (Segmentation fault)"). Reads what it said
  // last before that.
  std::optional<std::string> reap();

  // --- the pool's notes ---
  enum class State : uint8_t { starting, ready, reserved, serving, ending };
  State state = State::starting;
  std::chrono::steady_clock::time_point start_began;
  scheduler::SessionId session{};     // while reserved or serving
  std::string tenant;                 // of that session
  std::string label;                  // "session 0123abcd from 127.0.0.1:4711", for logs
  std::string reason;                 // what it said about its own end
  std::string stop_reason;            // why it was told to end the session
  uint64_t notes = 0;                 // that it sent
  bool begun = false;                 // its client has begun the session, as it said
  std::optional<EndCause> end_cause;  // what it said

 private:
  WorkerProcess(boost::asio::io_context& io, OwnedDescriptor descriptor, OwnedDescriptor process, pid_t pid, bool child,
                Events events);
  void kill();

  pid_t pid_;
  const bool child_;
  const Events events_;
  ipc::EventChannel channel_;
  boost::asio::posix::stream_descriptor process_;
  boost::asio::steady_timer kill_timer_;
  Lifetime lifetime_;
};

}  // namespace gpuwire::server
