// WebServer serves the page over HTTP/1.1, with Boost.Beast.
#pragma once

#include <functional>
#include <list>
#include <map>
#include <memory>
#include <string>

#include <boost/asio/io_context.hpp>
#include <boost/asio/ip/tcp.hpp>
#include <boost/asio/posix/stream_descriptor.hpp>
#include <boost/asio/steady_timer.hpp>

#include "server/base/lifetime.hpp"
#include "server/base/owned_descriptor.hpp"
#include "server/web/site.hpp"

namespace gpuwire::server::web {

// The io_context's thread only. Bounds are in limits.hpp.
class WebServer {
 public:
  WebServer(boost::asio::io_context& io, Site& site);
  ~WebServer();

  // One of both: serves the connections of a TCP socket that listens, without TLS; or those that arrive on the pair
  // with the process that speaks TLS. `gone`: that process has ended.
  void serve(OwnedDescriptor listening);
  void serve_arrivals(OwnedDescriptor pair, std::function<void()> gone);

 private:
  class Connection;
  void accept();
  void receive();
  void add(std::shared_ptr<Connection> connection);
  bool make_room();
  void leave(const std::shared_ptr<Connection>& connection) { connections_.remove(connection); }
  // Whether there is room for a stream of this visitor. close_stream() releases it.
  bool open_stream(const std::string& ticket);
  void close_stream(const std::string& ticket);

  boost::asio::io_context& io_;
  Site& site_;
  boost::asio::ip::tcp::acceptor acceptor_;
  boost::asio::steady_timer accept_timer_;
  boost::asio::posix::stream_descriptor arrivals_;
  std::function<void()> gone_;
  // Oldest first.
  std::list<std::shared_ptr<Connection>> connections_;
  // By ticket.
  std::map<std::string, size_t> streams_;
  size_t stream_count_ = 0;
  Lifetime lifetime_;
};

}  // namespace gpuwire::server::web
