#include "server/ipc/message_channel.hpp"

#include <cerrno>

#include <poll.h>

#include "server/ipc/limits.hpp"

namespace gpuwire::server {

using boost::asio::posix::stream_descriptor;
using boost::system::error_code;

MessageChannel::MessageChannel(boost::asio::io_context& io, OwnedDescriptor descriptor, Heard heard, Closed closed)
    : descriptor_(io, descriptor.release()), heard_(std::move(heard)), closed_(std::move(closed)) {
  listen();
}

void MessageChannel::listen() {
  descriptor_.async_wait(stream_descriptor::wait_read, lifetime_.guard([this](error_code error) {
    if (error) return;
    const Lifetime::Watch life = lifetime_.watch();
    const Heard heard = heard_;  // outlives the channel, which it may destroy
    for (size_t i = 0; i < kMessagesPerTurn; ++i) {
      IpcMessage message;
      IpcMessageReceived received = receive_ipc_message(descriptor_.native_handle(), false, message);
      if (received == IpcMessageReceived::none_yet) break;
      if (received == IpcMessageReceived::closed) return close();
      heard(std::move(message));
      if (life.gone()) return;
    }
    if (!over_) listen();
  }));
}

void MessageChannel::send(IpcMessage message) {
  if (over_) return;
  waiting_.push_back(std::move(message));
  if (!writing_) drain();
}

void MessageChannel::drain() {
  while (!waiting_.empty()) {
    if (send_ipc_message(descriptor_.native_handle(), waiting_.front())) {
      waiting_.pop_front();
      continue;
    }
    if (errno == ETOOMANYREFS || errno == ENOBUFS || errno == ENOMEM) {
      waiting_.pop_front();  // the machine has no room for it: its connection closes, the others go on
      continue;
    }
    if (errno != EAGAIN && errno != EWOULDBLOCK) return waiting_.clear();  // the reading side sees the end, and says so
    writing_ = true;
    descriptor_.async_wait(stream_descriptor::wait_write, lifetime_.guard([this](error_code error) {
      if (error) return;
      writing_ = false;
      drain();
    }));
    return;
  }
}

void MessageChannel::flush(std::chrono::milliseconds limit) {
  const auto until = std::chrono::steady_clock::now() + limit;
  while (!waiting_.empty()) {
    drain();
    auto left = std::chrono::ceil<std::chrono::milliseconds>(until - std::chrono::steady_clock::now()).count();
    pollfd watched{descriptor_.native_handle(), POLLOUT, 0};
    if (waiting_.empty() || left <= 0 || ::poll(&watched, 1, int(left)) != 1) return;
  }
}

void MessageChannel::close() {
  if (over_) return;
  over_ = true;
  waiting_.clear();
  const Closed closed = closed_;  // outlives the channel, which it may destroy
  closed();
}

}  // namespace gpuwire::server
