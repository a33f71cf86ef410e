// One end of a pair between two of the server's processes: messages in order, without waiting, and no more of them
// waiting than a bound says.
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

// The descriptor on which a process that the broker starts finds its end.
inline constexpr int kDescriptor = 3;

// Both ends close on exec. False: errno says why.
bool open_pair(OwnedDescriptor& broker, OwnedDescriptor& other);

// Outgoing messages wait here while the pair is full; incoming ones wait in the kernel, which holds as much as the
// pair's buffer. Any thread sends; one thread, which polls descriptor() for events(), reads and drains. No incoming
// message is trusted: see codec.hpp.
class Channel {
 public:
  // `other`: the name of the other end. `waiting_max`: the most messages that wait to be sent. `full`: a message waits
  // where none has, so events() has changed; called on the sending thread.
  Channel(OwnedDescriptor descriptor, Speaker other, size_t waiting_max, std::function<void()> full = {});
  ~Channel();
  Channel(const Channel&) = delete;
  Channel& operator=(const Channel&) = delete;

  // From now on a descriptor that is not shareable (shareable.hpp) makes the incoming message invalid; all its
  // descriptors go to `close`, which must not block and outlives the channel, and in the end the channel's own do, too.
  // Before the first message is read; for the reader of a worker.
  void only_shareable(std::function<void(OwnedDescriptor)> close) { close_unwelcome_ = std::move(close); }

  int descriptor() const { return descriptor_.get(); }
  // Later messages wait for earlier ones. False: as many wait as may, or nobody will read it; the message is as it was.
  bool send(Message&& message);
  // The number of waiting messages; code that sends messages which strangers cause checks it first.
  size_t waiting() const;
  // The other end has read, or thrown away, everything that was sent: nothing waits here or with the kernel.
  bool read_by_other_end() const;

  // The events to poll for.
  short events() const;
  // Sends waiting messages, as far as the pair takes them. True: none waits any more.
  bool drain();
  // `nonsense`: the incoming message is invalid, fault() has the reason, and no later message of this end should be
  // trusted.
  enum class Received : uint8_t { message, none_yet, closed, nonsense };
  Received try_receive(std::optional<Message>& message);
  const std::string& fault() const { return fault_; }
  // The other end has ended, or is not trusted, and nobody else reads this one: its messages are discarded.
  void discard_unread();

  // For a process without other work: sends waiting messages, and blocks for the next incoming one. Nothing: the time
  // is over, or none will come. Below zero: no limit.
  std::optional<Message> await(std::chrono::milliseconds limit = std::chrono::milliseconds(-1));
  // Sends waiting messages, for at most this long; blocks. True: all have been sent.
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
  std::function<void(OwnedDescriptor)> close_unwelcome_;  // empty: whatever comes is welcome
  bool welcome(std::vector<OwnedDescriptor>& descriptors) const;

  std::string fault_;    // the hearing thread's
  mutable Mutex mutex_;  // a leaf; held over a sendmsg that does not wait, so that messages go in their order
  std::deque<Waiting> waiting_ GUARDED_BY(mutex_);
  bool closed_ GUARDED_BY(mutex_) = false;  // the other end is gone
};

}  // namespace gpuwire::server::ipc
