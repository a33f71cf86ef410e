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
// outlives its connection gets the time that is passed to detached().
class Watchdog {
 public:
  static constexpr int kExitOverdue = 3;  // the process's exit code when the watchdog had to end it

  // Called on the watchdog's thread; none may block. `stop`: the broker ends the session, once. `gone`: the client has
  // closed its side, once. `hung_up`: the client has closed its side in a session that outlives its connection, once
  // for each connection. `grace_over`: the grace period of a lost connection is over, once. `on_message`: all other
  // messages of the broker.
  struct Hooks {
    std::function<void(StopOrder order)> stop;
    std::function<void()> gone;
    std::function<void()> hung_up;
    std::function<void()> grace_over;
    std::function<void(ipc::Message)> on_message;
    // Called every kExecutorPollMs while there is a connection whose end may follow unread bytes; empty: the end is
    // seen despite unread bytes.
    std::function<void()> poll_executor = {};
  };
  // `broker` outlives this object, and from now on only this object reads and drains it; a thread that leaves a message
  // unsent in it calls broker_full().
  Watchdog(ipc::Channel& broker, std::shared_ptr<transport::Transport> connection, Hooks hooks);
  Watchdog(const Watchdog&) = delete;
  Watchdog& operator=(const Watchdog&) = delete;
  ~Watchdog();

  void begin_grace();
  // Any thread; does not block.
  void broker_full();

  // From now on the connection's end does not end the session, and `poll` is called periodically: it returns the time
  // until its next call. May be called a second time with the first `poll`.
  void outlive_connections(std::function<std::chrono::nanoseconds()> poll = {});
  // Starts the grace period of a lost connection.
  void detached(uint32_t grace_ms);
  void attached(std::shared_ptr<transport::Transport> connection);

 private:
  void watch();
  // Milliseconds until the deadline; -1: there is none.
  int time_left();
  // Calls `poll_` if it is due. Returns the milliseconds until its next call; -1: never.
  int poll();
  // Calls hooks_.poll_executor if it is due. Returns the milliseconds until the next call; -1: never.
  int poll_executor(bool connected);
  // Handles the client's closing of its side. True: the process has to end.
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
