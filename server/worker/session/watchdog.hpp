// Makes sure that a worker's process ends: a session may be stuck in a driver call, and then only the end of the
// process frees the device.
#pragma once

#include <chrono>
#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <thread>

#include "protocol/threads/mutex.hpp"
#include "protocol/transport/transport.hpp"
#include "server/ipc/channel.hpp"

namespace gpuwire::server {

// A thread that watches the broker's descriptor and the client's connection. When either is closed, the broker says
// stop, or begin_grace() is called, the process has kEndGraceMs left, then the watchdog calls _exit. A session that
// outlives its connection has the time that it is given when one is lost.
class Watchdog {
 public:
  static constexpr int kExitOverdue = 3;  // the process's exit code when the watchdog had to end it

  // On the watchdog's thread; none may block. `stop`: the broker ends the session, once. `gone`: the client has closed
  // its side, once. `hung_up`: the same in a session that outlives its connection, once for each connection.
  // `grace_over`: the time of a lost connection is over, once. `hear`: all other messages of the broker.
  struct Hooks {
    std::function<void(StopOrder order)> stop;
    std::function<void()> gone;
    std::function<void()> hung_up;
    std::function<void()> grace_over;
    std::function<void(ipc::Message)> on_message;
    // Every kExecutorPollMs while there is a connection whose end may stand behind bytes that nobody reads; empty: its
    // end is seen whatever stands before it.
    std::function<void()> poll_executor = {};
  };
  // `broker` outlives it, and from now on only this object reads and drains it; a thread that leaves a message waiting
  // there calls broker_full().
  Watchdog(ipc::Channel& broker, std::shared_ptr<transport::Transport> connection, Hooks hooks);
  Watchdog(const Watchdog&) = delete;
  Watchdog& operator=(const Watchdog&) = delete;
  ~Watchdog();

  void begin_grace();
  // Any thread; does not block.
  void broker_full();

  // From now on the connection's end is not the session's, and `look` is called when its own last answer says so: how
  // long until the next time. May be called a second time with the first `look`.
  void outlive_connections(std::function<std::chrono::nanoseconds()> poll = {});
  // There is no connection, for at most this long.
  void detached(uint32_t grace_ms);
  void attached(std::shared_ptr<transport::Transport> connection);

 private:
  void watch();
  // Milliseconds until the deadline; -1: there is none.
  int time_left();
  // Looks if it is to, and says when to look again; -1: never.
  int poll();
  // As poll(), of the executor.
  int poll_executor(bool connected);
  // The client has closed its side. True: the process has to end.
  bool closed(const std::shared_ptr<transport::Transport>& connection);
  // Reads the broker's messages. True: the process has to end.
  bool hear_broker();

  ipc::Channel& broker_;
  const Hooks hooks_;
  Mutex mutex_;
  std::shared_ptr<transport::Transport> connection_ GUARDED_BY(mutex_);  // null: its end has been seen
  bool outlives_ GUARDED_BY(mutex_) = false;
  std::optional<std::chrono::steady_clock::time_point> deadline_ GUARDED_BY(mutex_);
  std::function<std::chrono::nanoseconds()> poll_;  // set before outlives_, used by the thread when it has seen that
  std::chrono::steady_clock::time_point executor_poll_{};  // the thread's: when the next one is due
  OwnedDescriptor changed_;  // an eventfd: for changes under the mutex, and for messages that wait for the broker
  OwnedDescriptor wake_;
  OwnedDescriptor quit_;
  std::thread thread_;
};

}  // namespace gpuwire::server
