// ControlServer is the control socket: a Unix socket on which `gpuwire top`, `status`, `admin` and `metrics`, and other
// programs that read JSON, query the server.
#pragma once

#include <filesystem>
#include <functional>
#include <list>
#include <memory>
#include <optional>

#include <boost/asio/io_context.hpp>
#include <boost/asio/local/stream_protocol.hpp>
#include <boost/asio/steady_timer.hpp>
#include <sys/socket.h>
#include <tl/expected.hpp>

#include "server/base/lifetime.hpp"
#include "server/broker/connection/query_budget.hpp"
#include "server/control/requests.hpp"
#include "server/control/sources.hpp"

namespace gpuwire::server {

// All functions run on the io_context's thread; none blocks. Each JSON line gets one answer, in turn; a watch goes on
// until its peer sends anything or closes. Bounds are in limits.hpp. Precondition of the destructor: the io_context
// does not run any more.
class ControlServer {
 public:
  // Returns the user at the other end of a socket; nothing, if the kernel does not tell.
  using UserOf = std::function<std::optional<ucred>(int socket)>;
  static std::optional<ucred> user_of(int socket);

  ControlServer(boost::asio::io_context& io, ControlSources sources, UserOf users = &ControlServer::user_of,
                QueryBudget questions = QueryBudget());
  ~ControlServer();
  ControlServer(const ControlServer&) = delete;
  ControlServer& operator=(const ControlServer&) = delete;

  // Creates the socket, mode 0666: the peer's user determines its rights. The socket of an ended server is replaced.
  // The error names path and cause.
  tl::expected<void, std::string> listen(const std::filesystem::path& path);
  // Ends all connections and removes the socket. Also in the destructor.
  void close();
  const std::filesystem::path& path() const { return path_; }

 private:
  class Connection;
  using Protocol = boost::asio::local::stream_protocol;

  void accept();
  void welcome(Protocol::socket socket);
  bool make_room(const ControlPeer& peer);
  void leave(const std::shared_ptr<Connection>& connection) { connections_.remove(connection); }

  boost::asio::io_context& io_;
  const ControlSources sources_;
  const UserOf user_of_;
  // For each user who is not an administrator.
  QueryBudget questions_;
  Protocol::acceptor acceptor_;
  boost::asio::steady_timer accept_timer_;
  std::filesystem::path path_;
  // Oldest first.
  std::list<std::shared_ptr<Connection>> connections_;
  Lifetime lifetime_;
};

}  // namespace gpuwire::server
