// The broker's end of the pair that it shares with gpuwire-web.
#pragma once

#include <functional>
#include <string>
#include <string_view>

#include <boost/asio/io_context.hpp>
#include <boost/asio/local/stream_protocol.hpp>

#include "server/base/lifetime.hpp"
#include "server/base/owned_descriptor.hpp"
#include "server/control/client/metrics_json.hpp"

namespace gpuwire::server {

// One line, one answer, in turn: a peer that does not read its answers is not asked any further. On the thread that
// runs the io_context.
class WebChannel {
 public:
  using Answer = std::function<Json(std::string_view line)>;
  // `over`: the peer has gone, or has said what is no request; called at most once, and may destroy this.
  WebChannel(boost::asio::io_context& io, OwnedDescriptor ours, Answer answer, std::function<void()> over);

 private:
  void read();
  void write(const Json& json);
  void end();

  boost::asio::local::stream_protocol::socket socket_;
  const Answer answer_;
  std::function<void()> over_;
  std::string in_, out_;
  Lifetime lifetime_;
};

}  // namespace gpuwire::server
