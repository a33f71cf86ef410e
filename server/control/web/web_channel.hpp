// WebChannel is the broker's end of the socket pair with gpuwire-web.
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

// Each line gets one answer, in turn: no further line is read before the peer has read its answer. The io_context's
// thread only.
class WebChannel {
 public:
  using Answer = std::function<Json(std::string_view line)>;
  // `over`: the peer has closed the pair or has sent too long a line; called at most once, and may destroy this object.
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
