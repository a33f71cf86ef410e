#include "client_stub/account/account_channel.hpp"
#include "protocol/transport/connecting.hpp"

#include <sys/socket.h>
#include <sys/syscall.h>
#include <sys/un.h>
#include <unistd.h>

#include <cstddef>
#include <cstring>

namespace gpuwire::client {

namespace {

constexpr long kPidfdOpen = 434;  // SYS_pidfd_open, which older headers lack; the same on all architectures
constexpr int kDescriptors = 3;   // process, page, standard error
constexpr int kWaitingMax = 128;  // processes that connect before the watch accepts them
constexpr socklen_t kNameAt = offsetof(sockaddr_un, sun_path) + 1;  // of abstract names, behind a zero

// One byte, with room for the descriptors beside it.
struct Message {
  char byte = 0;
  iovec bytes{&byte, 1};
  alignas(cmsghdr) char room[CMSG_SPACE(kDescriptors * sizeof(int))] = {};
  msghdr header{};

  Message() noexcept {
    header.msg_iov = &bytes;
    header.msg_iovlen = 1;
    header.msg_control = room;
    header.msg_controllen = sizeof room;
  }
  Message(const Message&) = delete;
  Message& operator=(const Message&) = delete;
};

// The peer of a connection: its credentials when it connected or listened.
bool is_of_this_user(int socket) noexcept {
  ucred peer{};
  socklen_t size = sizeof peer;
  return getsockopt(socket, SOL_SOCKET, SO_PEERCRED, &peer, &size) == 0 && peer.uid == geteuid();
}

}  // namespace

OwnedDescriptor::~OwnedDescriptor() {
  if (descriptor_ >= 0) close(descriptor_);
}

OwnedDescriptor own_process() noexcept { return OwnedDescriptor(int(syscall(kPidfdOpen, getpid(), 0))); }

AccountListener listen_for_accounts() noexcept {
  AccountListener out{OwnedDescriptor(::socket(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC | SOCK_NONBLOCK, 0)), {}};
  sockaddr_un address{};
  address.sun_family = AF_UNIX;
  socklen_t size = sizeof address;
  // Without a name the socket gets an unused one.
  if (!out.socket || bind(out.socket.get(), reinterpret_cast<sockaddr*>(&address), sizeof address.sun_family) != 0 ||
      listen(out.socket.get(), kWaitingMax) != 0 ||
      getsockname(out.socket.get(), reinterpret_cast<sockaddr*>(&address), &size) != 0 || size <= kNameAt)
    return {};
  out.name.assign(address.sun_path + 1, size - kNameAt);
  return out;
}

bool hand_account_over(const char* name, int page) noexcept {
  sockaddr_un address{};
  const size_t length = strnlen(name, sizeof address.sun_path);
  if (length == 0 || length >= sizeof address.sun_path) return false;
  address.sun_family = AF_UNIX;
  std::memcpy(address.sun_path + 1, name, length);
  OwnedDescriptor socket(::socket(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC | SOCK_NONBLOCK, 0));
  OwnedDescriptor process = own_process();
  if (!socket || !process ||
      transport::connect_through_signals(socket.get(), reinterpret_cast<sockaddr*>(&address),
                                         kNameAt + socklen_t(length)) != 0 ||
      !is_of_this_user(socket.get()))
    return false;
  const int descriptors[kDescriptors] = {process.get(), page, STDERR_FILENO};
  Message message;
  cmsghdr* rights = CMSG_FIRSTHDR(&message.header);
  rights->cmsg_level = SOL_SOCKET;
  rights->cmsg_type = SCM_RIGHTS;
  rights->cmsg_len = CMSG_LEN(sizeof descriptors);
  std::memcpy(CMSG_DATA(rights), descriptors, sizeof descriptors);
  return sendmsg(socket.get(), &message.header, MSG_NOSIGNAL) == 1;
}

OwnedDescriptor accept_account(const OwnedDescriptor& listener) noexcept {
  for (;;) {
    OwnedDescriptor connection(accept4(listener.get(), nullptr, nullptr, SOCK_CLOEXEC | SOCK_NONBLOCK));
    if (!connection || is_of_this_user(connection.get())) return connection;
  }
}

std::optional<HandedAccount> receive_account(const OwnedDescriptor& connection) noexcept {
  Message message;
  if (recvmsg(connection.get(), &message.header, MSG_CMSG_CLOEXEC) <= 0) return std::nullopt;
  const cmsghdr* rights = CMSG_FIRSTHDR(&message.header);
  if (!rights || rights->cmsg_level != SOL_SOCKET || rights->cmsg_type != SCM_RIGHTS) return std::nullopt;
  // All received descriptors must be closed, whatever their number.
  int descriptors[kDescriptors] = {-1, -1, -1};
  const size_t length = rights->cmsg_len - CMSG_LEN(0);
  std::memcpy(descriptors, CMSG_DATA(rights), length < sizeof descriptors ? length : sizeof descriptors);
  HandedAccount out{OwnedDescriptor(descriptors[0]), OwnedDescriptor(descriptors[1]), OwnedDescriptor(descriptors[2])};
  if (length != sizeof descriptors) return std::nullopt;
  return out;
}

}  // namespace gpuwire::client
