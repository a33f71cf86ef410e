#include "server/web/server_channel.hpp"

#include <utility>

#include <boost/asio/buffer.hpp>
#include <boost/asio/post.hpp>
#include <boost/asio/read_until.hpp>
#include <boost/asio/write.hpp>

#include "server/web/limits.hpp"

namespace gpuwire::server::web {

ServerChannel::ServerChannel(boost::asio::io_context& io, OwnedDescriptor pair, std::function<void()> gone)
    : io_(io), socket_(io, boost::asio::local::stream_protocol(), pair.release()), gone_(std::move(gone)) {
  read();
}

void ServerChannel::ask(const Json& question, Answered answered) {
  if (questions_.size() >= kAskedMax) {
    boost::asio::post(io_, lifetime_.guard([answered = std::move(answered)] {
      answered(tl::unexpected(std::string("the server has too much to answer; try again")));
    }));
    return;
  }
  questions_.push_back({dump(question) + "\n", std::move(answered)});
  if (questions_.size() == 1) write();
}

void ServerChannel::write() {
  boost::asio::async_write(socket_, boost::asio::buffer(questions_.front().line),
                           lifetime_.guard([this](boost::system::error_code error, size_t) {
                             if (error) gone_();
                           }));
}

// Reads all the time: without a question, too, the process has to notice that the server has closed the pair.
void ServerChannel::read() {
  boost::asio::async_read_until(socket_, boost::asio::dynamic_buffer(in_, kAnswerBytesMax), '\n',
                                lifetime_.guard([this](boost::system::error_code error, size_t bytes) {
                                  if (error) return gone_();
                                  take(bytes);
                                }));
}

void ServerChannel::take(size_t bytes) {
  Json answer = Json::parse(in_.begin(), in_.begin() + std::ptrdiff_t(bytes), nullptr, false);
  in_.erase(0, bytes);
  if (!answer.is_object() || questions_.empty()) return gone_();
  const Answered answered = std::move(questions_.front().answered);
  questions_.pop_front();
  read();
  if (!questions_.empty()) write();
  answered(std::move(answer));
}

}  // namespace gpuwire::server::web
