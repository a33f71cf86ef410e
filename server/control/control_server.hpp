// The control socket: a Unix socket on which `gpuwire top`, `status`, `admin` and `metrics`, and other programs that
// read JSON, query the server.
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
#include "server/broker/admission/query_budget.hpp"
#include "server/control/requests.hpp"
#include "server/control/sources.hpp"

namespace gpuwire::server {

// Everything on the thread that runs the io_context; nothing blocks. One JSON line, one answer, in turn; a watch goes
// on until its peer says something or goes. Bounds are in limits.hpp. It goes when the io_context runs no more.
class ControlServer {
 public:
  // Which user is at the other end of a socket; nobody, when the kernel does not say.
  using UserOf = std::function<std::optional<ucred>(int socket)>;
  static std::optional<ucred> user_of(int socket);

  ControlServer(boost::asio::io_context& io, ControlSources sources, UserOf users = &ControlServer::user_of,
                QueryBudget questions = QueryBudget());
  ~ControlServer();
  ControlServer(const ControlServer&) = delete;
  ControlServer& operator=(const ControlServer&) = delete;

  // Makes the socket, mode 0666: the peer's user determines its rights. The socket of an ended server is replaced. The
  // error names path and cause.
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
  QueryBudget questions_;  // of each user who is not an administrator
  Protocol::acceptor acceptor_;
  boost::asio::steady_timer accept_timer_;
  std::filesystem::path path_;
  std::list<std::shared_ptr<Connection>> connections_;  // oldest first
  Lifetime lifetime_;
};

}  // namespace gpuwire::server
