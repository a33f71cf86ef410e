// The page's end of the pair that it shares with the broker.
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

// Questions are answered in turn. On the thread that runs the io_context.
class ServerChannel {
 public:
  // What the server has said, also {"ok":false,...}. The error: it was not asked.
  using Answered = std::function<void(tl::expected<Json, std::string>)>;
  // `gone`: the server has closed the pair, or says what cannot be.
  ServerChannel(boost::asio::io_context& io, OwnedDescriptor pair, std::function<void()> gone);

  // `answered` is called later, never from here.
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
  std::deque<Question> questions_;  // the first of them is being answered
  std::string in_;
  Lifetime lifetime_;
};

}  // namespace gpuwire::server::web
