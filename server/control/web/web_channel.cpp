#include "server/control/web/web_channel.hpp"

#include <utility>

#include <boost/asio/buffer.hpp>
#include <boost/asio/read_until.hpp>
#include <boost/asio/write.hpp>

#include "server/control/web/limits.hpp"

namespace gpuwire::server {

WebChannel::WebChannel(boost::asio::io_context& io, OwnedDescriptor ours, Answer answer, std::function<void()> over)
    : socket_(io, boost::asio::local::stream_protocol(), ours.release()),
      answer_(std::move(answer)),
      over_(std::move(over)) {
  read();
}

void WebChannel::read() {
  boost::asio::async_read_until(socket_, boost::asio::dynamic_buffer(in_, kWebRequestBytesMax), '\n',
                                lifetime_.guard([this](boost::system::error_code error, size_t bytes) {
                                  if (error) return end();
                                  const Json json = answer_(std::string_view(in_).substr(0, bytes - 1));
                                  in_.erase(0, bytes);
                                  write(json);
                                }));
}

void WebChannel::write(const Json& json) {
  out_ = dump(json);
  out_ += '\n';
  boost::asio::async_write(socket_, boost::asio::buffer(out_),
                           lifetime_.guard([this](boost::system::error_code error, size_t) {
                             if (error) return end();
                             read();
                           }));
}

void WebChannel::end() {
  if (auto over = std::exchange(over_, {})) over();
}

}  // namespace gpuwire::server
