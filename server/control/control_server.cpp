#include "server/control/control_server.hpp"

#include <algorithm>
#include <cerrno>
#include <cstring>
#include <optional>
#include <utility>

#include <boost/asio/buffer.hpp>
#include <boost/asio/read_until.hpp>
#include <boost/asio/write.hpp>
#include <fmt/format.h>
#include <spdlog/spdlog.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/un.h>
#include <unistd.h>

#include "server/control/client/limits.hpp"

namespace gpuwire::server {
namespace {

namespace asio = boost::asio;
using boost::system::error_code;
using Protocol = asio::local::stream_protocol;

constexpr mode_t kSocketMode = 0666;
constexpr const char* kUnreadySuffix = "~";

ControlPeer peer_of(const ucred& who, const ControlSources& sources) {
  ControlPeer peer{.uid = who.uid, .pid = who.pid};
  peer.everything = who.uid == 0 || who.uid == ::geteuid();
  if (!peer.everything && sources.tenants_of_user) peer.tenants = sources.tenants_of_user(who.uid);
  return peer;
}

// Removes a socket without a listener. The error says why the path cannot be used.
tl::expected<void, std::string> clear_path(asio::io_context& io, const std::filesystem::path& path) {
  struct stat facts {};
  if (::lstat(path.c_str(), &facts) != 0) return {};
  if (!S_ISSOCK(facts.st_mode)) return tl::unexpected(fmt::format("{} exists and is not a socket", path.string()));
  Protocol::socket probe(io);
  error_code error;
  probe.connect(Protocol::endpoint(path.string()), error);
  if (!error) return tl::unexpected(fmt::format("another server listens on {}", path.string()));
  ::unlink(path.c_str());
  return {};
}

}  // namespace

class ControlServer::Connection : public std::enable_shared_from_this<Connection> {
  // The guard keeps the connection alive for the callback, and drops the callback when the server is gone.
  template <class Callback>
  auto guard(Callback callback) {
    return server_.lifetime_.guard([self = shared_from_this(), callback = std::move(callback)](
                                       error_code error, auto... more) { callback(error, more...); });
  }

 public:
  Connection(ControlServer& server, Protocol::socket socket, ControlPeer peer)
      : server_(server),
        socket_(std::move(socket)),
        timer_(server.io_),
        interval_timer_(server.io_),
        peer_(std::move(peer)) {}

  const ControlPeer& peer() const { return peer_; }
  void abort() {
    error_code ignored;
    timer_.cancel();
    interval_timer_.cancel();
    socket_.close(ignored);
  }

  void read_request() {
    limit(kControlIdleMs);
    asio::async_read_until(
        socket_, asio::dynamic_buffer(line_, kControlRequestBytesMax), '\n',
        guard([this](error_code error, size_t bytes) {
          if (error == asio::error::not_found)
            return write(failed_answer(fmt::format("a request has at most {} bytes", kControlRequestBytesMax)),
                         &Connection::end);
          if (error) return end();
          answer(bytes);
        }));
  }

 private:
  using Then = void (Connection::*)();

  // Lets pending operations fail when the time is up.
  void limit(uint32_t ms) {
    timer_.expires_after(std::chrono::milliseconds(ms));
    timer_.async_wait(guard([this](error_code error) {
      if (!error) end();
    }));
  }

  void answer(size_t bytes) {
    if (!socket_.is_open()) return;
    if (!peer_.everything && !server_.questions_.take(fmt::format("user {}", peer_.uid))) {
      line_.erase(0, bytes);
      return write(failed_answer(fmt::format("you ask too often: {} questions at once are answered, and {} a second",
                                             kQueriesAtOnce, 1000 / kQueryRefillMs)),
                   &Connection::read_request);
    }
    ControlAnswer answer = answer_request(std::string_view(line_).substr(0, bytes - 1), peer_, server_.sources_);
    line_.erase(0, bytes);
    if (answer.later) {
      limit(kControlLaterMs);
      return answer.later([write_it = guard([this](error_code, const Json& json) {
                             if (socket_.is_open()) write(json, &Connection::read_request);
                           })](const Json& json) mutable { write_it(error_code(), json); });
    }
    if (answer.watch_interval_ms == 0) return write(answer.json, &Connection::read_request);
    interval_ = std::chrono::milliseconds(answer.watch_interval_ms);
    next_ = std::chrono::steady_clock::now();
    watch_for_end();
    show();
  }

  void write(const Json& json, Then then) {
    out_ = dump(json);
    out_ += '\n';
    limit(kControlWriteMs);
    asio::async_write(socket_, asio::buffer(out_), guard([this, then](error_code error, size_t) {
                        timer_.cancel();
                        if (error) return end();
                        (this->*then)();
                      }));
  }

  void show() {
    if (socket_.is_open()) write(snapshot_answer(peer_, server_.sources_), &Connection::await_interval);
  }

  // A peer that reads slowly gets fewer snapshots, never a queue of them.
  void await_interval() {
    next_ = std::max(next_ + interval_, std::chrono::steady_clock::now());
    interval_timer_.expires_at(next_);
    interval_timer_.async_wait(guard([this](error_code error) {
      if (!error) show();
    }));
  }

  void watch_for_end() {
    socket_.async_read_some(asio::buffer(&ignored_, 1), guard([this](error_code, size_t) { end(); }));
  }

  void end() {
    if (!socket_.is_open()) return;
    abort();
    server_.leave(shared_from_this());
  }

  ControlServer& server_;
  Protocol::socket socket_;
  asio::steady_timer timer_, interval_timer_;
  const ControlPeer peer_;
  std::string line_, out_;
  std::chrono::milliseconds interval_{};
  std::chrono::steady_clock::time_point next_;
  char ignored_ = 0;
};

std::optional<ucred> ControlServer::user_of(int socket) {
  ucred who{};
  socklen_t bytes = sizeof who;
  if (::getsockopt(socket, SOL_SOCKET, SO_PEERCRED, &who, &bytes) != 0) return std::nullopt;
  return who;
}

ControlServer::ControlServer(asio::io_context& io, ControlSources sources, UserOf users, QueryBudget questions)
    : io_(io),
      sources_(std::move(sources)),
      user_of_(std::move(users)),
      questions_(std::move(questions)),
      acceptor_(io),
      accept_timer_(io) {}

ControlServer::~ControlServer() { close(); }

tl::expected<void, std::string> ControlServer::listen(const std::filesystem::path& path) {
  auto failed = [&](const std::string& why) {
    return tl::unexpected(fmt::format("no control socket {}: {}", path.string(), why));
  };
  if (path.string().size() + 1 >= sizeof(sockaddr_un::sun_path))
    return failed("the path is too long for a Unix socket");
  if (auto cleared = clear_path(io_, path); !cleared) return tl::unexpected(cleared.error());
  // The socket has another name until it listens: a search for sockets takes one that refuses for that of an ended
  // server.
  const std::string unready = path.string() + kUnreadySuffix;
  ::unlink(unready.c_str());
  error_code error;
  acceptor_.open(Protocol(), error);
  if (!error) acceptor_.bind(Protocol::endpoint(unready), error);
  if (!error) acceptor_.listen(int(kControlConnectionsMax), error);
  if (error) return failed(error.message());
  if (::chmod(unready.c_str(), kSocketMode) != 0 || ::rename(unready.c_str(), path.c_str()) != 0) {
    std::string why = std::strerror(errno);
    ::unlink(unready.c_str());
    return failed(why);
  }
  path_ = path;
  accept();
  return {};
}

void ControlServer::close() {
  error_code ignored;
  accept_timer_.cancel();
  acceptor_.close(ignored);
  for (auto& connection : std::exchange(connections_, {})) connection->abort();
  if (!path_.empty()) ::unlink(std::exchange(path_, {}).c_str());
}

void ControlServer::accept() {
  acceptor_.async_accept(lifetime_.guard([this](error_code error, Protocol::socket socket) {
    if (error == asio::error::operation_aborted) return;
    if (!error) {
      welcome(std::move(socket));
      return accept();
    }
    spdlog::warn("control socket: accept: {}", error.message());
    accept_timer_.expires_after(std::chrono::milliseconds(kControlAcceptRetryMs));
    accept_timer_.async_wait(lifetime_.guard([this](error_code stopped) {
      if (!stopped) accept();
    }));
  }));
}

// Users of tenants never take the places of administrators, and none of them takes all places of users.
bool ControlServer::make_room(const ControlPeer& peer) {
  if (!peer.everything) {
    const auto others = std::ranges::count_if(connections_, [](const auto& one) { return !one->peer().everything; });
    const auto own = std::ranges::count_if(connections_, [&](const auto& one) { return one->peer().uid == peer.uid; });
    return size_t(others) < kControlConnectionsOthersMax && size_t(own) < kControlConnectionsPerUserMax &&
           connections_.size() < kControlConnectionsMax;
  }
  if (connections_.size() < kControlConnectionsMax) return true;
  connections_.front()->abort();
  connections_.pop_front();
  return true;
}

void ControlServer::welcome(Protocol::socket socket) {
  const std::optional<ucred> who = user_of_(socket.native_handle());
  if (!who) return;
  ControlPeer peer = peer_of(*who, sources_);
  if (!make_room(peer)) return;
  auto connection = std::make_shared<Connection>(*this, std::move(socket), std::move(peer));
  connections_.push_back(connection);
  connection->read_request();
}

}  // namespace gpuwire::server
