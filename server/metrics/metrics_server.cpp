#include "server/metrics/metrics_server.hpp"

#include <array>
#include <utility>

#include <boost/asio/buffer.hpp>
#include <boost/asio/read_until.hpp>
#include <boost/asio/write.hpp>
#include <spdlog/spdlog.h>

#include "server/control/client/control_client.hpp"
#include "server/metrics/families.hpp"
#include "server/metrics/http.hpp"

namespace gpuwire::server {
namespace {

namespace asio = boost::asio;
using asio::ip::tcp;
using boost::system::error_code;

}  // namespace

class MetricsServer::Connection : public std::enable_shared_from_this<Connection> {
  // The callback keeps the connection, and is not called after the server was destroyed.
  template <class Callback>
  auto guard(Callback callback) {
    return server_.lifetime_.guard([self = shared_from_this(), callback = std::move(callback)](
                                       error_code error, auto... more) { callback(error, more...); });
  }

 public:
  Connection(MetricsServer& server, tcp::socket socket)
      : server_(server), socket_(std::move(socket)), timer_(server.io_) {}

  void abort() {
    error_code ignored;
    timer_.cancel();
    socket_.close(ignored);
  }

  void serve() {
    timer_.expires_after(std::chrono::milliseconds(kMetricsConnectionMs));
    timer_.async_wait(guard([this](error_code error) {
      if (!error) end();
    }));
    asio::async_read_until(socket_, asio::dynamic_buffer(head_, kMetricsRequestBytesMax), "\r\n\r\n",
                           guard([this](error_code error, size_t) {
                             if (error == asio::error::not_found)
                               return write(http_error(431, "Request Header Fields Too Large"));
                             if (error) return end();
                             write(http_answer(head_, [this] { return server_.metrics(); }));
                           }));
  }

 private:
  void write(std::string answer) {
    if (!socket_.is_open()) return;
    answer_ = std::move(answer);
    asio::async_write(socket_, asio::buffer(answer_), guard([this](error_code error, size_t) {
                        if (error) return end();
                        // Closing with unread bytes would reset the connection and lose the answer: the peer closes
                        // first, or the time is up.
                        error_code ignored;
                        socket_.shutdown(tcp::socket::shutdown_send, ignored);
                        linger();
                      }));
  }

  void linger() {
    socket_.async_read_some(asio::buffer(discarded_), guard([this](error_code error, size_t) {
                              if (error) return end();
                              linger();
                            }));
  }

  void end() {
    if (!socket_.is_open()) return;
    abort();
    server_.leave(shared_from_this());
  }

  MetricsServer& server_;
  tcp::socket socket_;
  asio::steady_timer timer_;
  std::string head_, answer_;
  std::array<char, 1024> discarded_;
};

MetricsServer::MetricsServer(asio::io_context& io, std::filesystem::path control)
    : io_(io), control_(std::move(control)), acceptor_(io), accept_timer_(io) {}

MetricsServer::~MetricsServer() {
  for (auto& connection : std::exchange(connections_, {})) connection->abort();
}

tl::expected<MetricsServer::Endpoint, std::string> MetricsServer::listen(const Endpoint& where) {
  try {
    acceptor_.open(where.protocol());
    acceptor_.set_option(tcp::acceptor::reuse_address(true));
    acceptor_.bind(where);
    acceptor_.listen(int(kMetricsConnectionsMax));
  } catch (const boost::system::system_error& error) {
    return tl::unexpected(
        fmt::format("cannot listen on {}:{}: {}", where.address().to_string(), where.port(), error.code().message()));
  }
  accept();
  return acceptor_.local_endpoint();
}

void MetricsServer::accept() {
  acceptor_.async_accept(lifetime_.guard([this](error_code error, tcp::socket socket) {
    if (error == asio::error::operation_aborted) return;
    if (error) {
      spdlog::warn("metrics: accept: {}", error.message());
      accept_timer_.expires_after(std::chrono::milliseconds(kMetricsAcceptRetryMs));
      accept_timer_.async_wait(lifetime_.guard([this](error_code stopped) {
        if (!stopped) accept();
      }));
      return;
    }
    if (connections_.size() >= kMetricsConnectionsMax) {
      connections_.front()->abort();
      connections_.pop_front();
    }
    connections_.push_back(std::make_shared<Connection>(*this, std::move(socket)));
    connections_.back()->serve();
    accept();
  }));
}

std::string MetricsServer::metrics() {
  auto now = std::chrono::steady_clock::now();
  if (made_ && now - *made_ < std::chrono::milliseconds(kMetricsFreshMs)) return text_;
  auto snapshot = ControlClient::connect(control_).and_then([](ControlClient client) { return client.snapshot(); });
  if (!snapshot) spdlog::warn("metrics: {}", snapshot.error());
  text_ = metrics_text(snapshot ? &*snapshot : nullptr);
  made_ = std::chrono::steady_clock::now();
  return text_;
}

}  // namespace gpuwire::server
