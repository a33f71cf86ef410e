#include "protocol/transport/descriptor_passing.hpp"

#include <algorithm>
#include <cerrno>
#include <cstring>
#include <utility>

#include <sys/socket.h>
#include <unistd.h>

namespace gpuwire::transport {
namespace {

template <size_t kDescriptors>
union ControlBufferOf {
  char bytes[CMSG_SPACE(kDescriptors * sizeof(int))];
  cmsghdr align;
};
using ControlBuffer = ControlBufferOf<kPassedDescriptorsMax>;
constexpr size_t kWithOneMessageMax = 253;  // SCM_MAX_FD of the kernel

msghdr message_of(std::span<const iovec> parts) {
  msghdr message{};
  message.msg_iov = const_cast<iovec*>(parts.data());  // neither call writes to the pieces
  message.msg_iovlen = parts.size();
  return message;
}

template <class Take>
ReceivedBytes receive(int socket, std::span<const iovec> parts, std::span<char> control, bool wait, Take&& take) {
  msghdr message = message_of(parts);
  message.msg_control = control.data();
  message.msg_controllen = control.size();
  ssize_t got;
  do got = ::recvmsg(socket, &message, MSG_CMSG_CLOEXEC | (wait ? 0 : MSG_DONTWAIT));
  while (got < 0 && errno == EINTR);
  if (got < 0) return {got};
  for (cmsghdr* header = CMSG_FIRSTHDR(&message); header; header = CMSG_NXTHDR(&message, header)) {
    if (header->cmsg_level != SOL_SOCKET || header->cmsg_type != SCM_RIGHTS) continue;
    for (size_t at = 0; at + CMSG_LEN(sizeof(int)) <= header->cmsg_len; at += sizeof(int)) {
      int passed = -1;
      std::memcpy(&passed, CMSG_DATA(header) + at, sizeof passed);
      take(passed);
    }
  }
  return {got, (message.msg_flags & MSG_TRUNC) != 0, (message.msg_flags & MSG_CTRUNC) != 0};
}

}  // namespace

PassedDescriptors::~PassedDescriptors() {
  for (size_t i = 0; i < count_; ++i) {
    if (descriptors_[i] >= 0) ::close(descriptors_[i]);
  }
}

int PassedDescriptors::take(size_t index) { return index < count_ ? std::exchange(descriptors_[index], -1) : -1; }

void PassedDescriptors::add(int descriptor) {
  if (count_ < descriptors_.size()) descriptors_[count_++] = descriptor;
  else ::close(descriptor);
}

ssize_t send_with_descriptors(int socket, std::span<const iovec> parts, std::span<const int> descriptors) {
  if (descriptors.size() > kPassedDescriptorsMax) {
    errno = EINVAL;
    return -1;
  }
  msghdr message = message_of(parts);
  ControlBuffer control{};
  if (!descriptors.empty()) {
    message.msg_control = control.bytes;
    message.msg_controllen = CMSG_SPACE(descriptors.size_bytes());
    cmsghdr* header = CMSG_FIRSTHDR(&message);
    header->cmsg_level = SOL_SOCKET;
    header->cmsg_type = SCM_RIGHTS;
    header->cmsg_len = CMSG_LEN(descriptors.size_bytes());
    std::memcpy(CMSG_DATA(header), descriptors.data(), descriptors.size_bytes());
  }
  ssize_t sent;
  do sent = ::sendmsg(socket, &message, MSG_NOSIGNAL | MSG_DONTWAIT);
  while (sent < 0 && errno == EINTR);
  return sent;
}

ReceivedBytes receive_with_descriptors(int socket, std::span<const iovec> parts, PassedDescriptors& descriptors,
                                       bool wait) {
  ControlBuffer control{};
  return receive(socket, parts, control.bytes, wait, [&](int passed) { descriptors.add(passed); });
}

ReceivedBytes receive_with_all_descriptors(int socket, std::span<const iovec> parts,
                                           const std::function<void(int)>& take) {
  ControlBufferOf<kWithOneMessageMax> control;
  return receive(socket, parts, control.bytes, false, take);
}

}  // namespace gpuwire::transport
