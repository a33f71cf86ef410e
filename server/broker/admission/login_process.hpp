// The login process (../login) as the broker sees it: started, given connections, started again when it dies.
#pragma once

#include <chrono>
#include <functional>
#include <memory>
#include <set>
#include <string>

#include <boost/asio/io_context.hpp>
#include <boost/asio/signal_set.hpp>
#include <boost/asio/steady_timer.hpp>
#include <sys/types.h>

#include "server/base/lifetime.hpp"
#include "server/ipc/message_channel.hpp"
#include "server/ipc/login_messages.hpp"

namespace gpuwire::server {

// The broker's thread only. Owns the process: it goes with this object.
class LoginProcess {
 public:
  struct Events {
    std::function<void(ConnectionId, LoginRequestMessage)> requested;
    // Of a connection for which there was a request, and that has not been passed on.
    std::function<void(ConnectionId, const std::string& why)> gone;
    std::function<void(ConnectionId, OwnedDescriptor socket, std::string key)> passed;
    // `untold`: others that nobody was told of, because there were too many at once.
    std::function<void(const LoginRefusal&, uint32_t untold)> turned_away;
    // Empty: the identity that was sent last counts.
    std::function<void(const std::string& error)> identity_read;
    // A process is there and knows nothing yet: its identity is due.
    std::function<void()> started;
  };
  LoginProcess(boost::asio::io_context& io, std::string program, Events events);
  ~LoginProcess();

  void start();
  // Whether arrive() finds somebody who listens.
  bool available() const;
  pid_t pid() const { return pid_; }

  void send_identity(IpcMessage message) { send(std::move(message)); }
  ConnectionId arrive(const Arrival& arrival, OwnedDescriptor socket);
  void queued(ConnectionId connection, const LoginQueued& place);
  void admitted(ConnectionId connection);
  void refused(ConnectionId connection, const std::string& reason);

 private:
  void send(IpcMessage message);
  void heard(IpcMessage message);
  void await_children();
  void ended(const std::string& how);
  void start_later();

  boost::asio::io_context& io_;
  const std::string program_;
  const Events events_;
  boost::asio::signal_set children_;
  boost::asio::steady_timer restart_timer_;
  std::unique_ptr<MessageChannel> channel_;
  pid_t pid_ = -1;
  std::chrono::steady_clock::time_point started_;
  unsigned failures_ = 0;  // deaths in a row, each soon after its start
  ConnectionId last_ = 0;
  std::set<ConnectionId> requested_;  // neither passed nor gone
  Lifetime lifetime_;
};

}  // namespace gpuwire::server
