// WebServer serves the page over HTTP/1.1, with Boost.Beast.
#pragma once

#include <list>
#include <map>
#include <memory>
#include <string>

#include <boost/asio/io_context.hpp>
#include <boost/asio/ip/tcp.hpp>
#include <boost/asio/steady_timer.hpp>

#include "server/base/lifetime.hpp"
#include "server/base/owned_descriptor.hpp"
#include "server/web/site.hpp"

namespace gpuwire::server::web {

// The io_context's thread only. Bounds are in limits.hpp.
class WebServer {
 public:
  // `listening`: a TCP socket that listens.
  WebServer(boost::asio::io_context& io, OwnedDescriptor listening, Site& site);
  ~WebServer();

 private:
  class Connection;
  void accept();
  bool make_room();
  void leave(const std::shared_ptr<Connection>& connection) { connections_.remove(connection); }
  // Whether there is room for a stream of this visitor. close_stream() releases it.
  bool open_stream(const std::string& ticket);
  void close_stream(const std::string& ticket);

  boost::asio::io_context& io_;
  Site& site_;
  boost::asio::ip::tcp::acceptor acceptor_;
  boost::asio::steady_timer accept_timer_;
  std::list<std::shared_ptr<Connection>> connections_;  // oldest first
  std::map<std::string, size_t> streams_;               // by ticket
  size_t stream_count_ = 0;
  Lifetime lifetime_;
};

}  // namespace gpuwire::server::web
