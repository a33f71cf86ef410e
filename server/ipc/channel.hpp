// One end of a socket pair between two of the server's processes. It sends messages in order without blocking, and
// queues a limited number of them.
#pragma once

#include <chrono>
#include <deque>
#include <functional>
#include <optional>
#include <string>
#include <vector>

#include "protocol/threads/mutex.hpp"
#include "server/ipc/codec.hpp"

namespace gpuwire::server::ipc {

// The number of the descriptor at which a process that the broker starts finds its end.
inline constexpr int kDescriptor = 3;

// Makes a pair whose ends close on exec. False: errno has the reason.
bool open_pair(OwnedDescriptor& broker, OwnedDescriptor& other);

// Outgoing messages are queued here while the pair is full; incoming ones wait in the kernel, up to the size of the
// pair's buffer. Any thread sends; one thread, which polls descriptor() for events(), reads and drains. Incoming
// messages are not trusted: see codec.hpp.
class Channel {
 public:
  // `other`: the name of the other end. `waiting_max`: the largest number of queued messages. `full`: called on the
  // sending thread when the first message is queued, so that events() has changed.
  Channel(OwnedDescriptor descriptor, Speaker other, size_t waiting_max, std::function<void()> full = {});
  ~Channel();
  Channel(const Channel&) = delete;
  Channel& operator=(const Channel&) = delete;

  // Makes an incoming message with a descriptor that is not shareable (shareable.hpp) invalid. `close` gets all
  // descriptors of such a message, and in the end the channel's own; it must not block, and outlives the channel. Call
  // it before the first message is read; for the reader of a worker's channel.
  void only_shareable(std::function<void(OwnedDescriptor)> close) { close_unwelcome_ = std::move(close); }

  int descriptor() const { return descriptor_.get(); }
  // Sends or queues a message, after all earlier ones. False: the queue is full, or the other end is gone; the message
  // is unchanged.
  bool send(Message&& message);
  // Returns the number of queued messages. Code whose messages unauthenticated callers can cause checks it first.
  size_t waiting() const;
  // Returns whether the other end has read or discarded everything that was sent: no message waits here or in the
  // kernel.
  bool read_by_other_end() const;

  // The events to poll for.
  short events() const;
  // Sends queued messages until the pair is full. True: the queue is empty.
  bool drain();
  // `nonsense`: the incoming message is invalid, fault() has the reason, and the reader should trust no later message
  // of this end.
  enum class Received : uint8_t { message, none_yet, closed, nonsense };
  Received try_receive(std::optional<Message>& message);
  const std::string& fault() const { return fault_; }
  // The other end has ended, or is not trusted any more, and no other process reads this end: discards its messages.
  void discard_unread();

  // For a process without other work: sends queued messages, and waits for the next incoming one. Nothing: the time is
  // over, or the other end is gone. Below zero: no time limit.
  std::optional<Message> await(std::chrono::milliseconds limit = std::chrono::milliseconds(-1));
  // Blocks for at most this long and sends queued messages. True: all were sent.
  bool flush(std::chrono::milliseconds limit);

 private:
  struct Waiting {
    kj::Array<capnp::word> words;
    std::vector<OwnedDescriptor> descriptors;
  };
  enum class Sent : uint8_t { yes, full, lost, closed };
  Sent send_now(std::span<const std::byte> bytes, std::span<const int> descriptors);
  bool drain_locked() REQUIRES(mutex_);

  OwnedDescriptor descriptor_;
  const Speaker other_;
  const size_t waiting_max_;
  const std::function<void()> full_;
  // Empty: all descriptors are accepted.
  std::function<void(OwnedDescriptor)> close_unwelcome_;
  bool welcome(std::vector<OwnedDescriptor>& descriptors) const;

  // The hearing thread's.
  std::string fault_;
  // A leaf; held over a non-blocking sendmsg, to keep the order of messages.
  mutable Mutex mutex_;
  std::deque<Waiting> waiting_ GUARDED_BY(mutex_);
  // The other end is gone.
  bool closed_ GUARDED_BY(mutex_) = false;
};

}  // namespace gpuwire::server::ipc
