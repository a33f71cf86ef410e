#include "protocol/transport/descriptor_passing.hpp"

#include <algorithm>
#include <cerrno>
#include <cstring>
#include <utility>

#include <sys/socket.h>
#include <unistd.h>

namespace gpuwire::transport {
namespace {

union ControlBuffer {
  char bytes[CMSG_SPACE(kPassedDescriptorsMax * sizeof(int))];
  cmsghdr align;
};

msghdr message_of(std::span<const iovec> parts) {
  msghdr message{};
  message.msg_iov = const_cast<iovec*>(parts.data());  // which neither call writes to
  message.msg_iovlen = parts.size();
  return message;
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
  msghdr message = message_of(parts);
  ControlBuffer control{};
  message.msg_control = control.bytes;
  message.msg_controllen = sizeof control.bytes;
  ssize_t got;
  do got = ::recvmsg(socket, &message, MSG_CMSG_CLOEXEC | (wait ? 0 : MSG_DONTWAIT));
  while (got < 0 && errno == EINTR);
  if (got < 0) return {got};
  for (cmsghdr* header = CMSG_FIRSTHDR(&message); header; header = CMSG_NXTHDR(&message, header)) {
    if (header->cmsg_level != SOL_SOCKET || header->cmsg_type != SCM_RIGHTS) continue;
    for (size_t at = 0; at + CMSG_LEN(sizeof(int)) <= header->cmsg_len; at += sizeof(int)) {
      int passed = -1;
      std::memcpy(&passed, CMSG_DATA(header) + at, sizeof passed);
      descriptors.add(passed);
    }
  }
  return {got, (message.msg_flags & MSG_TRUNC) != 0, (message.msg_flags & MSG_CTRUNC) != 0};
}

}  // namespace gpuwire::transport
