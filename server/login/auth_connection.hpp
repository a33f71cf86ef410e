// Handles one client from its preface until its worker takes over, or until its refusal.
#pragma once

#include <memory>
#include <string>

#include <boost/asio/io_context.hpp>
#include <boost/asio/posix/stream_descriptor.hpp>
#include <boost/asio/steady_timer.hpp>

#include "protocol/tls/token_challenge.hpp"
#include "protocol/wire/frame.hpp"
#include "server/login/auth_socket.hpp"
#include "server/login/login_frame.hpp"
#include "server/ipc/message.hpp"

namespace gpuwire::server {

class AuthConnection;

// An auth connection's calls to its owner. None of them may destroy the auth connection immediately; `left` is the last
// call.
class AuthConnectionOwner {
 public:
  // Returns the identity in force; null: none.
  virtual std::shared_ptr<const ServerIdentity> identity() const = 0;
  virtual WallTime now() const = 0;
  virtual void requested(AuthConnection& connection, ipc::Login request) = 0;
  // After requested().
  virtual void gone(AuthConnection& connection, std::string why) = 0;
  virtual void passed(AuthConnection& connection, OwnedDescriptor socket, std::string key) = 0;
  // Instead of requested().
  virtual void turned_away(AuthConnection& connection, ipc::TurnedAway refusal) = 0;
  virtual void left(AuthConnection& connection) = 0;

 protected:
  ~AuthConnectionOwner() = default;
};

// One thread, the io_context's.
class AuthConnection : public std::enable_shared_from_this<AuthConnection> {
 public:
  // The progress of the login; of too many connections, those with the least progress are dropped first.
  enum class Progress : uint8_t { refused, silent, speaking, secured, logged_in };

  // `arrival.socket` is there.
  AuthConnection(boost::asio::io_context& io, AuthConnectionOwner& keeper, ipc::Arrival arrival);

  ipc::ConnectionId number() const { return arrival_.connection; }
  const ipc::Arrival& arrival() const { return arrival_; }
  Progress progress() const;

  void begin();
  // The broker's answers; called only after the request.
  void queued(const ipc::Queued& place);
  void admitted();
  void refused(const std::string& reason);
  void told(const ipc::Told& part);
  // Drops the connection without an answer, because there are too many.
  void drop();
  // No process is left that could answer the client.
  void abandon();

 private:
  enum class Stage : uint8_t { greeting, handshake, login, challenge, waiting, granted, refusing, lingering, over };

  void advance();
  IoStep step();
  IoStep write_out();
  IoStep read_login();
  IoStep watch();
  IoStep linger();
  // The login is whole.
  void said();
  void challenge();
  void log_in();
  void wait_for(IoStep step);
  void wait(boost::asio::posix::stream_descriptor::wait_type what, bool& pending);
  void limit(uint32_t ms);
  void time_is_over();
  void ended(IoStep how);
  void turn_away(RefusalKind kind, std::string reason, std::string tenant = {}, std::string credential = {});
  void send_answer(std::string frame, Stage then);
  void hand_over();
  void finish();

  AuthConnectionOwner& keeper_;
  // Without its socket.
  ipc::Arrival arrival_;
  boost::asio::posix::stream_descriptor socket_;
  boost::asio::steady_timer timer_;
  AuthSocket connection_;
  LoginFrameReader login_;
  // The input of log_in().
  LoginFrame said_;
  // The hash of the token that the client will send.
  tls::TokenHash token_hash_{};
  // By which.
  tls::TokenChallenge challenge_;
  // Unsent bytes for the client.
  std::string out_;
  Stage stage_ = Stage::greeting;
  // The end of the client's credential; 0: never.
  int64_t identity_ends_unix_s_ = 0;
  size_t lingered_bytes_ = 0;
  // The broker has its request.
  bool requested_ = false;
  // Waits under way.
  bool reading_ = false, writing_ = false;
};

}  // namespace gpuwire::server
