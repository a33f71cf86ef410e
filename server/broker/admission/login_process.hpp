// The login process (../login) as the broker sees it: started, given connections, started again when it dies.
#pragma once

#include <chrono>
#include <functional>
#include <memory>
#include <string>

#include <boost/asio/io_context.hpp>
#include <boost/asio/signal_set.hpp>
#include <boost/asio/steady_timer.hpp>
#include <sys/types.h>

#include "server/base/lifetime.hpp"
#include "server/broker/worker/child_output.hpp"
#include "server/ipc/event_channel.hpp"
#include "server/ipc/request_table.hpp"

namespace gpuwire::server {

// The broker's thread only. Owns the process: it goes with this object.
class LoginProcess {
 public:
  struct Events {
    std::function<void(ipc::Login)> requested;
    // For a connection for which there was a request, and that has not been passed on.
    std::function<void(ipc::ConnectionId, const std::string& why)> gone;
    std::function<void(ipc::Passed)> passed;  // without its socket: this process had no descriptor for it
    std::function<void(const ipc::TurnedAway&)> turned_away;
    // Empty: the identity that was sent last counts.
    std::function<void(const std::string& error)> identity_read;
    // A process is there and knows nothing yet: its identity is due.
    std::function<void()> started;
  };
  LoginProcess(boost::asio::io_context& io, std::string program, Events events);
  ~LoginProcess();

  void start();
  // Whether arrive() finds a running login process.
  bool available() const;
  pid_t pid() const { return pid_; }

  void send_identity(ipc::Identity identity) { send(std::move(identity)); }
  // Gives the connection its number.
  void arrive(ipc::Arrival arrival);
  void queued(ipc::Queued place);
  void admitted(ipc::ConnectionId connection);
  void refused(ipc::ConnectionId connection, const std::string& reason);
  // The whole answer to a query.
  void told(ipc::ConnectionId connection, const std::string& text);

 private:
  void send(ipc::Message message);
  void on_message(ipc::Message message);
  void kill(const std::string& why);
  void await_children();
  void ended(const std::string& how);
  void start_later();

  boost::asio::io_context& io_;
  const std::string program_;
  const Events events_;
  boost::asio::signal_set children_;
  boost::asio::steady_timer restart_timer_;
  std::unique_ptr<ipc::EventChannel> channel_;
  std::unique_ptr<ChildOutput> output_;  // of the process that there is
  pid_t pid_ = -1;
  std::chrono::steady_clock::time_point started_;
  unsigned failures_ = 0;  // deaths in a row, each soon after its start
  ipc::ConnectionId last_ = 0;
  struct Requested {};
  ipc::RequestTable<Requested> requested_{ipc::kRequestedMax};  // by connection: neither passed nor gone
  Lifetime lifetime_;
};

}  // namespace gpuwire::server
