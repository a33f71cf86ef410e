// A channel that the thread of an io_context reads and drains.
#pragma once

#include <chrono>
#include <cstddef>
#include <functional>
#include <optional>
#include <string>

#include <boost/asio/io_context.hpp>
#include <boost/asio/posix/stream_descriptor.hpp>
#include <boost/asio/steady_timer.hpp>

#include "server/base/lifetime.hpp"
#include "server/ipc/channel.hpp"
#include "server/ipc/message_budget.hpp"

namespace gpuwire::server::ipc {

// Used only on that thread. After kMessagesPerTurn messages other handlers get a turn.
class EventChannel {
 public:
  // Each callback may destroy the channel. After `over` the channel reads no more messages: `why` is empty if the other
  // end is gone, and otherwise describes its violation ("more than 2000 messages a second"), after which no message of
  // it is trusted.
  struct Events {
    std::function<void(Message)> on_message;
    std::function<void(const std::string& why)> over;
    // As in Channel::only_shareable; empty: all descriptors are accepted. Must not destroy the channel.
    std::function<void(OwnedDescriptor)> unwelcome = {};
  };
  // `budget`: the messages of the other end are limited, and delayed beyond the limit.
  enum class Trust : uint8_t { full, budget };
  EventChannel(boost::asio::io_context& io, OwnedDescriptor descriptor, Speaker other, size_t waiting_max, Trust trust,
               Events events);
  ~EventChannel();
  EventChannel(const EventChannel&) = delete;
  EventChannel& operator=(const EventChannel&) = delete;

  // As Channel's.
  bool send(Message&& message) { return channel_.send(std::move(message)); }
  size_t waiting() const { return channel_.waiting(); }
  bool read_by_other_end() const { return channel_.read_by_other_end(); }
  bool flush(std::chrono::milliseconds limit) { return channel_.flush(limit); }
  int descriptor() const { return channel_.descriptor(); }
  // Reads the messages that have already arrived, at most this many: for a process that has ended.
  void hear_rest(size_t messages_max);
  void discard_unread() { channel_.discard_unread(); }  // as Channel's

 private:
  enum class Turn : uint8_t { done, over };
  Turn receive(size_t messages_max, size_t& received);
  void listen();
  void turn_over(size_t received);
  void await_room();
  void end(const std::string& why);

  Channel channel_;
  // The channel's descriptor, which it does not own.
  boost::asio::posix::stream_descriptor readable_;
  boost::asio::steady_timer pause_;
  const Events events_;
  std::optional<MessageBudget> budget_;
  bool awaiting_room_ = false, over_ = false;
  Lifetime lifetime_;
};

}  // namespace gpuwire::server::ipc
