#include "server/ipc/ipc_message.hpp"

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
  char bytes[CMSG_SPACE(kIpcMessageDescriptorsMax * sizeof(int))];
  cmsghdr align;
};

}  // namespace

bool open_ipc_message(OwnedDescriptor& broker, OwnedDescriptor& worker) {
  int ends[2];
  if (::socketpair(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC, 0, ends) != 0) return false;
  broker.reset(ends[0]);
  worker.reset(ends[1]);
  return true;
}

bool send_ipc_message(int descriptor, const IpcMessage& message) {
  Fixed fixed{uint32_t(message.kind), message.number, {}};
  std::copy(message.id.begin(), message.id.end(), fixed.id);
  iovec parts[2] = {{&fixed, sizeof fixed},
                    {const_cast<char*>(message.text.data()), std::min(message.text.size(), kIpcMessageTextBytesMax)}};
  msghdr packet{};
  packet.msg_iov = parts;
  packet.msg_iovlen = 2;
  ControlBuffer control{};
  if (message.socket) {
    int passed[kIpcMessageDescriptorsMax] = {message.socket.get()};
    size_t count = 1;
    for (const OwnedDescriptor& more : message.more) {
      if (count == kIpcMessageDescriptorsMax) return false;
      passed[count++] = more.get();
    }
    packet.msg_control = control.bytes;
    packet.msg_controllen = CMSG_SPACE(count * sizeof(int));
    cmsghdr* header = CMSG_FIRSTHDR(&packet);
    header->cmsg_level = SOL_SOCKET;
    header->cmsg_type = SCM_RIGHTS;
    header->cmsg_len = CMSG_LEN(count * sizeof(int));
    std::memcpy(CMSG_DATA(header), passed, count * sizeof(int));
  }
  ssize_t sent;
  do sent = ::sendmsg(descriptor, &packet, MSG_NOSIGNAL | MSG_DONTWAIT);
  while (sent < 0 && errno == EINTR);
  return sent >= 0;
}

IpcMessageReceived receive_ipc_message(int descriptor, bool wait, IpcMessage& message) {
  Fixed fixed{};
  char text[kIpcMessageTextBytesMax];
  iovec parts[2] = {{&fixed, sizeof fixed}, {text, sizeof text}};
  ControlBuffer control{};
  msghdr packet{};
  packet.msg_iov = parts;
  packet.msg_iovlen = 2;
  packet.msg_control = control.bytes;
  packet.msg_controllen = sizeof control.bytes;
  ssize_t got;
  do got = ::recvmsg(descriptor, &packet, MSG_CMSG_CLOEXEC | (wait ? 0 : MSG_DONTWAIT));
  while (got < 0 && errno == EINTR);
  if (got < 0 && errno == EAGAIN) return IpcMessageReceived::none_yet;

  message = IpcMessage{};
  for (cmsghdr* header = CMSG_FIRSTHDR(&packet); got >= 0 && header; header = CMSG_NXTHDR(&packet, header)) {
    if (header->cmsg_level != SOL_SOCKET || header->cmsg_type != SCM_RIGHTS) continue;
    size_t count = (header->cmsg_len - CMSG_LEN(0)) / sizeof(int);
    for (size_t i = 0; i < count; ++i) {
      int passed = -1;
      std::memcpy(&passed, CMSG_DATA(header) + i * sizeof(int), sizeof passed);
      if (i == 0) message.socket.reset(passed);
      else message.more.emplace_back(passed);
    }
  }
  if (got < ssize_t(sizeof fixed)) return IpcMessageReceived::closed;
  message.kind = IpcMessageKind(fixed.kind);
  message.number = fixed.number;
  std::copy(std::begin(fixed.id), std::end(fixed.id), message.id.begin());
  message.text.assign(text, size_t(got) - sizeof fixed);
  return IpcMessageReceived::message;
}

}  // namespace gpuwire::server
