// The login process's logic: all auth connections, and the messages to the broker about them.
#pragma once

#include <functional>
#include <list>
#include <map>
#include <memory>
#include <string>
#include <unordered_map>

#include <boost/asio/io_context.hpp>

#include "server/ipc/event_channel.hpp"
#include "server/ipc/request_table.hpp"
#include "server/login/auth_connection.hpp"
#include "server/login/limits.hpp"

namespace gpuwire::server {

// One thread, the io_context's. `closed`: called when the broker is gone and all refusals have ended.
class AuthServer final : private AuthConnectionOwner {
 public:
  using Clock = std::function<WallTime()>;
  AuthServer(boost::asio::io_context& io, OwnedDescriptor broker, Clock clock, std::function<void()> closed);
  ~AuthServer();

 private:
  using AuthConnections = std::list<std::shared_ptr<AuthConnection>>;

  void on_message(ipc::Message message);
  void read_identity(const ipc::Identity& identity);
  void welcome(ipc::Arrival arrival);
  void make_room(const std::string& address);
  std::string most_crowded() const;
  void drop_from(const std::string& address);

  std::shared_ptr<const ServerIdentity> identity() const override { return identity_; }
  WallTime now() const override { return clock_(); }
  void requested(AuthConnection& connection, ipc::Login request) override;
  void gone(AuthConnection& connection, std::string why) override;
  void passed(AuthConnection& connection, OwnedDescriptor socket, std::string key) override;
  void turned_away(AuthConnection& connection, ipc::TurnedAway refusal) override;
  void left(AuthConnection& connection) override;
  void forget_stranger(AuthConnection& connection);
  void broker_gone();

  boost::asio::io_context& io_;
  const Clock clock_;
  ipc::EventChannel broker_;
  std::shared_ptr<const ServerIdentity> identity_;
  // Not logged in, or refused; oldest first, at most kAuthConnectionsMax.
  AuthConnections strangers_;
  // The number of these connections, by address.
  std::unordered_map<std::string, size_t> from_address_;
  // By connection: the broker has their requests.
  ipc::RequestTable<std::shared_ptr<AuthConnection>> logged_in_{kLoggedInMax};
  const std::function<void()> closed_;
  bool leaving_ = false;
  // Refusals that the broker has not received.
  uint32_t unsent_ = 0;
};

}  // namespace gpuwire::server
