// The Prometheus endpoint: one thread, HTTP/1.0, a scrape at a time.
#pragma once

#include <chrono>
#include <filesystem>
#include <list>
#include <memory>
#include <optional>
#include <string>

#include <boost/asio/io_context.hpp>
#include <boost/asio/ip/tcp.hpp>
#include <boost/asio/steady_timer.hpp>
#include <tl/expected.hpp>

#include "server/base/lifetime.hpp"
#include "server/control/client/metrics.hpp"

namespace gpuwire::server {

inline constexpr size_t kMetricsConnectionsMax = 32;      // a further connection closes the oldest
inline constexpr size_t kMetricsRequestBytesMax = 8192;   // a request's head
inline constexpr uint32_t kMetricsConnectionMs = 10'000;  // for a whole exchange
inline constexpr uint32_t kMetricsFreshMs = 250;  // scrapes within it get one snapshot: no flood reaches the server
inline constexpr uint32_t kMetricsAcceptRetryMs = 100;

class MetricsServer {
 public:
  using Endpoint = boost::asio::ip::tcp::endpoint;
  // `control`: the server's control socket, connected again for each snapshot.
  MetricsServer(boost::asio::io_context& io, std::filesystem::path control);
  ~MetricsServer();

  // The error names the address and the cause.
  tl::expected<Endpoint, std::string> listen(const Endpoint& where);

 private:
  class Connection;
  void accept();
  void leave(const std::shared_ptr<Connection>& connection) { connections_.remove(connection); }
  std::string metrics();

  boost::asio::io_context& io_;
  const std::filesystem::path control_;
  boost::asio::ip::tcp::acceptor acceptor_;
  boost::asio::steady_timer accept_timer_;
  // Oldest first.
  std::list<std::shared_ptr<Connection>> connections_;
  std::string text_;
  // text_.
  std::optional<std::chrono::steady_clock::time_point> made_;
  Lifetime lifetime_;
};

}  // namespace gpuwire::server
