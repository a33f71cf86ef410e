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
  // The process's exit code if the watchdog had to end it.
  static constexpr int kExitOverdue = 3;

  // The session's part, called on the watchdog's thread; no function may block.
  struct Hooks {
    // The broker ends the session. Called once.
    std::function<void(StopOrder order)> stop;
    // The client has closed its side. Called once.
    std::function<void()> gone;
    // The client has closed its side in a session that outlives its connection. Called once for each connection.
    std::function<void()> hung_up;
    // The grace period of a lost connection is over. Called once.
    std::function<void()> grace_over;
    // The broker has sent another message.
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

  // Starts the last kEndGraceMs of the process.
  void begin_grace();
  // Notifies the watchdog that a message for the broker waits for room. Any thread; does not block.
  void broker_full();

  // From now on the connection's end does not end the session, and `poll` is called periodically: it returns the time
  // until its next call. May be called a second time with the first `poll`.
  void outlive_connections(std::function<std::chrono::nanoseconds()> poll = {});
  // Starts the grace period of a lost connection.
  void detached(uint32_t grace_ms);
  // Ends the grace period: the session has a new connection.
  void attached(std::shared_ptr<transport::Transport> connection);

 private:
  void watch();
  // Returns the milliseconds until the deadline, or -1 if there is none.
  int time_left();
  // Calls `poll_` if it is due. Returns the milliseconds until its next call; -1: never.
  int poll();
  // Calls hooks_.poll_executor if it is due. Returns the milliseconds until the next call; -1: never.
  int poll_executor(bool connected);
  // Handles the client's closing of its side. Returns whether the process has to end.
  bool closed(const std::shared_ptr<transport::Transport>& connection);
  // Reads the broker's messages. Returns whether the process has to end.
  bool read_broker();

  ipc::Channel& broker_;
  const Hooks hooks_;
  Mutex mutex_;
  // Null if its end has been seen.
  std::shared_ptr<transport::Transport> connection_ GUARDED_BY(mutex_);
  bool outlives_ GUARDED_BY(mutex_) = false;
  std::optional<std::chrono::steady_clock::time_point> deadline_ GUARDED_BY(mutex_);
  // Set before outlives_, and used by the thread when it has seen that.
  std::function<std::chrono::nanoseconds()> poll_;
  // The time of the thread's next check of the executor.
  std::chrono::steady_clock::time_point executor_poll_{};
  // An eventfd for changes under the mutex, and for messages that wait for the broker.
  OwnedDescriptor changed_;
  OwnedDescriptor wake_;
  OwnedDescriptor quit_;
  std::thread thread_;
};

}  // namespace gpuwire::server
