#include "server/ipc/channel.hpp"

#include <algorithm>
#include <array>
#include <cerrno>
#include <cstring>
#include <utility>

#include <linux/sockios.h>
#include <poll.h>
#include <sys/ioctl.h>
#include <sys/socket.h>

#include "protocol/transport/descriptor_passing.hpp"
#include "server/ipc/limits.hpp"
#include "server/ipc/shareable.hpp"

namespace gpuwire::server::ipc {
namespace {

using Clock = std::chrono::steady_clock;
using std::chrono::milliseconds;

static_assert(kDescriptorsMax <= transport::kPassedDescriptorsMax);

// Waits until `until`; below zero: without a limit.
int left_ms(Clock::time_point until, bool for_ever) {
  if (for_ever) return -1;
  auto left = std::chrono::ceil<milliseconds>(until - Clock::now()).count();
  return int(std::clamp<int64_t>(left, 0, INT32_MAX));
}

std::vector<int> numbers_of(const std::vector<OwnedDescriptor>& descriptors) {
  std::vector<int> numbers;
  numbers.reserve(descriptors.size());
  for (const OwnedDescriptor& descriptor : descriptors) numbers.push_back(descriptor.get());
  return numbers;
}

}  // namespace

bool open_pair(OwnedDescriptor& broker, OwnedDescriptor& other) {
  int ends[2];
  if (::socketpair(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC, 0, ends) != 0) return false;
  broker.reset(ends[0]);
  other.reset(ends[1]);
  return true;
}

Channel::Channel(OwnedDescriptor descriptor, Speaker other, size_t waiting_max, std::function<void()> full)
    : descriptor_(std::move(descriptor)), other_(other), waiting_max_(waiting_max), full_(std::move(full)) {}

// The process that closes the pair last also closes unread descriptors in it.
Channel::~Channel() {
  if (close_unwelcome_) close_unwelcome_(std::move(descriptor_));
}

void Channel::discard_unread() {
  if (!close_unwelcome_) return;
  std::byte nothing[1];
  iovec part{nothing, sizeof nothing};
  auto close = [this](int passed) { close_unwelcome_(OwnedDescriptor(passed)); };
  for (size_t unread = 0; unread < kUnreadMessagesMax; ++unread)
    if (transport::receive_with_all_descriptors(descriptor_.get(), {&part, 1}, close).bytes <= 0) break;
}

// --- sending -------------------------------------------------------------------------------------------------------

Channel::Sent Channel::send_now(std::span<const std::byte> bytes, std::span<const int> descriptors) {
  iovec part{const_cast<std::byte*>(bytes.data()), bytes.size()};
  if (transport::send_with_descriptors(descriptor_.get(), {&part, 1}, descriptors) >= 0) return Sent::yes;
  if (errno == EAGAIN || errno == EWOULDBLOCK) return Sent::full;
  // The kernel limits the descriptors in flight: this message is lost, but later messages are not.
  if (errno == ETOOMANYREFS || errno == ENOBUFS || errno == ENOMEM) return Sent::lost;
  return Sent::closed;
}

bool Channel::send(Message&& message) {
  Packet packet = encode(message);
  std::vector<int> numbers;
  numbers.reserve(packet.descriptors.size());
  for (const OwnedDescriptor* descriptor : packet.descriptors) numbers.push_back(descriptor->get());
  {
    MutexLock lock(mutex_);
    if (closed_) return false;
    if (waiting_.empty()) {
      switch (send_now(packet.bytes(), numbers)) {
        case Sent::full: break;
        case Sent::lost: return false;
        case Sent::closed: closed_ = true; return false;
        case Sent::yes:
          for (OwnedDescriptor* descriptor : packet.descriptors) descriptor->reset();
          return true;
      }
    }
    if (waiting_.size() >= waiting_max_) return false;
    Waiting waits{std::move(packet.words), {}};
    for (OwnedDescriptor* descriptor : packet.descriptors) waits.descriptors.push_back(std::move(*descriptor));
    waiting_.push_back(std::move(waits));
    if (waiting_.size() > 1) return true;
  }
  if (full_) full_();
  return true;
}

size_t Channel::waiting() const {
  MutexLock lock(mutex_);
  return waiting_.size();
}

bool Channel::read_by_other_end() const {
  int unread_bytes = 0;
  return waiting() == 0 && ::ioctl(descriptor_.get(), SIOCOUTQ, &unread_bytes) == 0 && unread_bytes == 0;
}

short Channel::events() const { return short(POLLIN | (waiting() ? POLLOUT : 0)); }

bool Channel::drain() {
  MutexLock lock(mutex_);
  return drain_locked();
}

bool Channel::drain_locked() {
  while (!waiting_.empty()) {
    const Waiting& first = waiting_.front();
    auto bytes = std::as_bytes(std::span(first.words.begin(), first.words.size()));
    Sent sent = send_now(bytes, numbers_of(first.descriptors));
    if (sent == Sent::full) return false;
    if (sent == Sent::closed) {
      closed_ = true;
      waiting_.clear();
      return true;
    }
    waiting_.pop_front();
  }
  return true;
}

bool Channel::flush(milliseconds limit) {
  const auto until = Clock::now() + limit;
  while (!drain()) {
    pollfd watched{descriptor_.get(), POLLOUT, 0};
    int ready = ::poll(&watched, 1, left_ms(until, false));
    if (ready == 0 || (ready < 0 && errno != EINTR)) return false;
  }
  return true;
}

// --- hearing -------------------------------------------------------------------------------------------------------

bool Channel::welcome(std::vector<OwnedDescriptor>& descriptors) const {
  if (!close_unwelcome_) return true;
  const bool all = descriptors.size() <= kDescriptorsMax &&
                   std::ranges::all_of(descriptors, [](const auto& one) { return is_shareable(one.get()); });
  if (all) return true;
  for (OwnedDescriptor& descriptor : descriptors) close_unwelcome_(std::move(descriptor));
  return false;
}

Channel::Received Channel::try_receive(std::optional<Message>& message) {
  message.reset();
  alignas(8) std::array<std::byte, kPacketBytesMax> bytes;
  iovec part{bytes.data(), bytes.size()};
  std::vector<OwnedDescriptor> descriptors;
  auto received = transport::receive_with_all_descriptors(descriptor_.get(), {&part, 1},
                                                          [&](int passed) { descriptors.emplace_back(passed); });
  if (received.bytes < 0 && (errno == EAGAIN || errno == EWOULDBLOCK)) return Received::none_yet;
  if (received.bytes < 0) return Received::closed;
  if (!welcome(descriptors)) {
    fault_ = kNotShareable;
    return Received::nonsense;
  }
  if (received.bytes == 0) {
    // The end of the pair, or an empty packet.
    pollfd watched{descriptor_.get(), 0, 0};
    if (::poll(&watched, 1, 0) == 1 && (watched.revents & POLLHUP)) return Received::closed;
    fault_ = "what cannot be: no bytes";
    return Received::nonsense;
  }
  if (received.cut) {
    fault_ = "what cannot be: more bytes than a message has";
    return Received::nonsense;
  }
  auto decoded = decode(std::span(bytes).first(size_t(received.bytes)), std::move(descriptors), other_);
  ::explicit_bzero(bytes.data(), size_t(received.bytes));  // it may have held a key
  if (!decoded) {
    fault_ = std::move(decoded.error());
    return Received::nonsense;
  }
  message = std::move(*decoded);
  return Received::message;
}

std::optional<Message> Channel::await(milliseconds limit) {
  const auto until = Clock::now() + limit;
  for (;;) {
    drain();
    std::optional<Message> message;
    switch (try_receive(message)) {
      case Received::message: return message;
      case Received::closed:
      case Received::nonsense: return std::nullopt;
      case Received::none_yet: break;
    }
    pollfd watched{descriptor_.get(), events(), 0};
    int ready = ::poll(&watched, 1, left_ms(until, limit.count() < 0));
    if (ready == 0 || (ready < 0 && errno != EINTR)) return std::nullopt;
  }
}

}  // namespace gpuwire::server::ipc
