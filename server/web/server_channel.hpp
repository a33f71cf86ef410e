// ServerChannel is the page's end of the socket pair with the broker.
#pragma once

#include <deque>
#include <functional>
#include <string>

#include <boost/asio/io_context.hpp>
#include <boost/asio/local/stream_protocol.hpp>
#include <tl/expected.hpp>

#include "server/base/lifetime.hpp"
#include "server/base/owned_descriptor.hpp"
#include "server/control/client/metrics_json.hpp"

namespace gpuwire::server::web {

// Requests are answered in turn. The io_context's thread only.
class ServerChannel {
 public:
  // Gets the server's answer, {"ok":false,...} included. The error: the request was not sent.
  using Answered = std::function<void(tl::expected<Json, std::string>)>;
  // `gone`: the server has closed the pair, or has sent a malformed answer or one that no request waits for.
  ServerChannel(boost::asio::io_context& io, OwnedDescriptor pair, std::function<void()> gone);

  // `answered` is called later, never before ask() returns.
  void ask(const Json& question, Answered answered);

 private:
  struct Question {
    std::string line;
    Answered answered;
  };
  void write();
  void read();
  void take(size_t bytes);

  boost::asio::io_context& io_;
  boost::asio::local::stream_protocol::socket socket_;
  const std::function<void()> gone_;
  // The first one is being answered.
  std::deque<Question> questions_;
  std::string in_;
  Lifetime lifetime_;
};

}  // namespace gpuwire::server::web
