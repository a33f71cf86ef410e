// One end of a pair between the broker and the login process, or its keeper: messages in order, kept while the pair is
// full.
#pragma once

#include <chrono>
#include <deque>
#include <functional>

#include <boost/asio/io_context.hpp>
#include <boost/asio/posix/stream_descriptor.hpp>

#include "server/base/lifetime.hpp"
#include "server/ipc/ipc_message.hpp"

namespace gpuwire::server {

// For the thread that runs the io_context.
class MessageChannel {
 public:
  // `closed`: the other end is gone; nothing comes any more. Either may destroy the channel.
  using Heard = std::function<void(IpcMessage)>;
  using Closed = std::function<void()>;
  MessageChannel(boost::asio::io_context& io, OwnedDescriptor descriptor, Heard heard, Closed closed);
  MessageChannel(const MessageChannel&) = delete;
  MessageChannel& operator=(const MessageChannel&) = delete;

  // Later messages wait for earlier ones. To an end that is gone nothing is sent.
  void send(IpcMessage message);
  // Sends what waits, for at most so long; blocks.
  void flush(std::chrono::milliseconds limit);
  // How many wait; whoever sends what strangers cause looks here first.
  size_t backlog() const { return waiting_.size(); }

 private:
  void listen();
  void drain();
  void close();

  boost::asio::posix::stream_descriptor descriptor_;
  const Heard heard_;
  const Closed closed_;
  std::deque<IpcMessage> waiting_;
  bool writing_ = false, over_ = false;
  Lifetime lifetime_;
};

}  // namespace gpuwire::server
