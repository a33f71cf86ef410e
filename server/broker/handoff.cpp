#include "server/broker/handoff.hpp"

#include <algorithm>
#include <cerrno>
#include <cstring>

#include <sys/socket.h>

namespace gpuwire::server {
namespace {

struct Fixed {
  uint32_t kind;
  uint32_t number;
  uint8_t id[16];
};

union ControlBuffer {
  char bytes[CMSG_SPACE(kHandoffDescriptorsMax * sizeof(int))];
  cmsghdr align;
};

}  // namespace

bool open_handoff(OwnedDescriptor& broker, OwnedDescriptor& worker) {
  int ends[2];
  if (::socketpair(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC, 0, ends) != 0) return false;
  broker.reset(ends[0]);
  worker.reset(ends[1]);
  return true;
}

bool send_handoff(int descriptor, const Handoff& handoff) {
  Fixed fixed{uint32_t(handoff.kind), handoff.number, {}};
  std::copy(handoff.id.begin(), handoff.id.end(), fixed.id);
  iovec parts[2] = {{&fixed, sizeof fixed},
                    {const_cast<char*>(handoff.text.data()), std::min(handoff.text.size(), kHandoffTextBytesMax)}};
  msghdr message{};
  message.msg_iov = parts;
  message.msg_iovlen = 2;
  ControlBuffer control{};
  if (handoff.socket) {
    int passed[kHandoffDescriptorsMax] = {handoff.socket.get()};
    size_t count = 1;
    for (const OwnedDescriptor& more : handoff.more) {
      if (count == kHandoffDescriptorsMax) return false;
      passed[count++] = more.get();
    }
    message.msg_control = control.bytes;
    message.msg_controllen = CMSG_SPACE(count * sizeof(int));
    cmsghdr* header = CMSG_FIRSTHDR(&message);
    header->cmsg_level = SOL_SOCKET;
    header->cmsg_type = SCM_RIGHTS;
    header->cmsg_len = CMSG_LEN(count * sizeof(int));
    std::memcpy(CMSG_DATA(header), passed, count * sizeof(int));
  }
  ssize_t sent;
  do sent = ::sendmsg(descriptor, &message, MSG_NOSIGNAL | MSG_DONTWAIT);
  while (sent < 0 && errno == EINTR);
  return sent >= 0;
}

HandoffReceived receive_handoff(int descriptor, bool wait, Handoff& handoff) {
  Fixed fixed{};
  char text[kHandoffTextBytesMax];
  iovec parts[2] = {{&fixed, sizeof fixed}, {text, sizeof text}};
  ControlBuffer control{};
  msghdr message{};
  message.msg_iov = parts;
  message.msg_iovlen = 2;
  message.msg_control = control.bytes;
  message.msg_controllen = sizeof control.bytes;
  ssize_t got;
  do got = ::recvmsg(descriptor, &message, MSG_CMSG_CLOEXEC | (wait ? 0 : MSG_DONTWAIT));
  while (got < 0 && errno == EINTR);
  if (got < 0 && errno == EAGAIN) return HandoffReceived::none_yet;

  handoff = Handoff{};
  for (cmsghdr* header = CMSG_FIRSTHDR(&message); got >= 0 && header; header = CMSG_NXTHDR(&message, header)) {
    if (header->cmsg_level != SOL_SOCKET || header->cmsg_type != SCM_RIGHTS) continue;
    size_t count = (header->cmsg_len - CMSG_LEN(0)) / sizeof(int);
    for (size_t i = 0; i < count; ++i) {
      int passed = -1;
      std::memcpy(&passed, CMSG_DATA(header) + i * sizeof(int), sizeof passed);
      if (i == 0) handoff.socket.reset(passed);
      else handoff.more.emplace_back(passed);
    }
  }
  if (got < ssize_t(sizeof fixed)) return HandoffReceived::closed;
  handoff.kind = HandoffKind(fixed.kind);
  handoff.number = fixed.number;
  std::copy(std::begin(fixed.id), std::end(fixed.id), handoff.id.begin());
  handoff.text.assign(text, size_t(got) - sizeof fixed);
  return HandoffReceived::message;
}

}  // namespace gpuwire::server
