// LoginProcess is the broker's side of the login process (../login): it starts the process, passes connections to it,
// and restarts it when it dies.
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

// The broker's thread only. The object owns the process, and ends it in its destructor.
class LoginProcess {
 public:
  struct Events {
    std::function<void(ipc::Login)> requested;
    // A connection with a request has ended before it was passed on.
    std::function<void(ipc::ConnectionId, const std::string& why)> gone;
    // Without its socket if this process had no descriptor for it.
    std::function<void(ipc::Passed)> passed;
    std::function<void(const ipc::TurnedAway&)> turned_away;
    // Empty: the process uses the identity that was sent last.
    std::function<void(const std::string& error)> identity_read;
    // A process has started and needs its identity.
    std::function<void()> started;
  };
  LoginProcess(boost::asio::io_context& io, std::string program, Events events);
  ~LoginProcess();

  void start();
  // Whether a login process runs, for arrive().
  bool available() const;
  pid_t pid() const { return pid_; }

  void send_identity(ipc::Identity identity) { send(std::move(identity)); }
  // Numbers the connection and passes it on.
  void arrive(ipc::Arrival arrival);
  void queued(ipc::Queued place);
  void admitted(ipc::ConnectionId connection);
  void refused(ipc::ConnectionId connection, const std::string& reason);
  // Sends an empty part of an answer to a query, so that its client goes on waiting.
  void answer_follows(ipc::ConnectionId connection) { send(ipc::Told{connection, {}, false}); }
  // Sends the whole answer to a query.
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
  // The output of the running process.
  std::unique_ptr<ChildOutput> output_;
  pid_t pid_ = -1;
  std::chrono::steady_clock::time_point started_;
  // Deaths in a row, each soon after its start.
  unsigned failures_ = 0;
  ipc::ConnectionId last_ = 0;
  struct Requested {};
  // By connection, until it is passed on or gone.
  ipc::RequestTable<Requested> requested_{ipc::kRequestedMax};
  Lifetime lifetime_;
};

}  // namespace gpuwire::server
