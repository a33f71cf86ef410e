// One end of a pair between two of the server's processes: messages in order, without waiting, and no more of them
// waiting than a bound says.
#pragma once

#include <chrono>
#include <deque>
#include <functional>
#include <mutex>
#include <optional>
#include <string>
#include <vector>

#include "server/ipc/codec.hpp"

namespace gpuwire::server::ipc {

// The descriptor on which a process that the broker starts finds its end.
inline constexpr int kDescriptor = 3;

// Both ends close on exec. False: errno says why.
bool open_pair(OwnedDescriptor& broker, OwnedDescriptor& other);

// What is sent waits here while the pair is full; what comes waits with the kernel, which holds as much as the pair's
// buffer. Any thread sends; one thread, which polls descriptor() for events(), hears and drains. Nothing of what is
// heard is believed: see codec.hpp.
class Channel {
 public:
  // `other`: who speaks at the other end. `waiting_max`: messages that wait to be sent. `full`: a message waits where
  // none has, so events() has changed; called on the thread that sends.
  Channel(OwnedDescriptor descriptor, Speaker other, size_t waiting_max, std::function<void()> full = {});
  Channel(const Channel&) = delete;
  Channel& operator=(const Channel&) = delete;

  int descriptor() const { return descriptor_.get(); }
  // Later messages wait for earlier ones. False: as many wait as may, or nobody will read it; the message is as it was.
  bool send(Message&& message);
  // How many wait; whoever sends what strangers cause looks here first.
  size_t waiting() const;
  // The other end has read, or thrown away, everything that was sent: nothing waits here or with the kernel.
  bool read_by_other_end() const;

  // What to poll for.
  short events() const;
  // Sends what waits, as far as the pair takes it. True: nothing waits any more.
  bool drain();
  // `nonsense`: what came cannot be, fault() says why, and nothing that this end says later should be believed.
  enum class Heard : uint8_t { message, none_yet, closed, nonsense };
  Heard hear(std::optional<Message>& message);
  const std::string& fault() const { return fault_; }

  // For who has nothing else to do: sends what waits, and blocks for the next message. Nothing: the time is over, or
  // none will come. Below zero: no limit.
  std::optional<Message> await(std::chrono::milliseconds limit = std::chrono::milliseconds(-1));
  // Sends what waits, for at most so long; blocks. True: all of it has gone.
  bool flush(std::chrono::milliseconds limit);

 private:
  struct Waiting {
    kj::Array<capnp::word> words;
    std::vector<OwnedDescriptor> descriptors;
  };
  enum class Sent : uint8_t { yes, full, lost, closed };
  Sent send_now(std::span<const std::byte> bytes, std::span<const int> descriptors);
  bool drain_locked();

  const OwnedDescriptor descriptor_;
  const Speaker other_;
  const size_t waiting_max_;
  const std::function<void()> full_;
  std::string fault_;         // the hearing thread's
  mutable std::mutex mutex_;  // a leaf; held over a sendmsg that does not wait, so that messages go in their order
  std::deque<Waiting> waiting_;
  bool closed_ = false;  // the other end is gone
};

}  // namespace gpuwire::server::ipc
