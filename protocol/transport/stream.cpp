#include "protocol/transport/stream.hpp"

#include <arpa/inet.h>
#include <fcntl.h>
#include <netinet/in.h>
#include <netinet/tcp.h>
#include <poll.h>
#include <sys/eventfd.h>
#include <sys/ioctl.h>
#include <sys/socket.h>
#include <sys/syscall.h>
#include <sys/un.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstddef>
#include <cstdlib>
#include <cstring>
#include <ctime>

namespace gpuwire::transport {

namespace {

class StreamTransport final : public Transport {
 public:
  StreamTransport(int socket, int event, std::string peer, const char* road)
      : socket_(socket), event_(event), peer_(std::move(peer)), road_(road) {}
  ~StreamTransport() override {
    close(socket_);
    close(event_);
  }

  IoResult try_send(std::span<const iovec> pieces) noexcept override {
    msghdr message{};
    message.msg_iov = const_cast<iovec*>(pieces.data());
    message.msg_iovlen = std::min(pieces.size(), kPiecesMax);
    ssize_t sent;
    do sent = sendmsg(socket_, &message, MSG_NOSIGNAL | MSG_DONTWAIT);
    while (sent < 0 && errno == EINTR);
    if (sent > 0) return {IoStatus::ok, size_t(sent)};
    if (sent == 0 || errno == EAGAIN || errno == EWOULDBLOCK || errno == ENOBUFS) return {IoStatus::would_block};
    return {IoStatus::failed, 0, errno};
  }

  IoResult try_receive(std::span<std::byte> out) noexcept override { return receive(out, MSG_DONTWAIT); }
  IoResult receive_bulk(std::span<std::byte> out) noexcept override { return receive(out, MSG_WAITALL); }

  bool input() noexcept override {
    std::byte probe;
    ssize_t got = recv(socket_, &probe, 1, MSG_DONTWAIT | MSG_PEEK);
    return got >= 0 || (errno != EAGAIN && errno != EWOULDBLOCK && errno != EINTR);
  }

  size_t unread() noexcept override {
    int bytes = 0;
    return ioctl(socket_, FIONREAD, &bytes) == 0 && bytes > 0 ? size_t(bytes) : 0;
  }

  unsigned wait(unsigned interest, Nanoseconds timeout) noexcept override {
    pollfd polled[2] = {{socket_, 0, 0}, {event_, POLLIN, 0}};
    if (interest & kReadable) polled[0].events |= POLLIN;
    if (interest & kWritable) polled[0].events |= POLLOUT;
    // A socket that is not asked about would still report its end, again and again.
    if (!polled[0].events) polled[0].fd = -1;
    auto count = std::max<Nanoseconds::rep>(timeout.count(), 0);
    timespec limit{time_t(count / 1'000'000'000), long(count % 1'000'000'000)};
    if (ppoll(polled, interest & kWoken ? 2 : 1, &limit, nullptr) <= 0) return 0;
    unsigned ready = 0;
    if (polled[0].revents & (POLLIN | POLLERR | POLLHUP | POLLNVAL)) ready |= kReadable;
    if (polled[0].revents & (POLLOUT | POLLERR | POLLHUP | POLLNVAL)) ready |= kWritable;
    if ((interest & kWoken) && polled[1].revents) {
      uint64_t count_of_wakes;
      if (read(event_, &count_of_wakes, sizeof count_of_wakes) > 0) ready |= kWoken;
    }
    return ready & interest;
  }

  void wake() noexcept override {
    uint64_t one = 1;
    [[maybe_unused]] ssize_t written = write(event_, &one, sizeof one);
  }

  void finish() noexcept override { ::shutdown(socket_, SHUT_WR); }
  void shutdown() noexcept override { ::shutdown(socket_, SHUT_RDWR); }
  // TCP sends nothing for it.
  void stop_receiving() noexcept override { ::shutdown(socket_, SHUT_RD); }

  void reset() noexcept override {
    // Dissolves a TCP connection: the kernel resets it, and whoever waits for it wakes up. Another thread may be
    // receiving, which the kernel allows. The thread sanitizer takes each connect() for the making of a descriptor that
    // nobody else may use yet, so the call is made without the C library.
    sockaddr nobody{};
    nobody.sa_family = AF_UNSPEC;
    if (syscall(SYS_connect, socket_, &nobody, sizeof nobody) != 0) shutdown();
  }

  bool peer_closed() noexcept override {
    tcp_info info{};
    socklen_t size = sizeof info;
    if (getsockopt(socket_, IPPROTO_TCP, TCP_INFO, &info, &size) == 0)
      return info.tcpi_state == TCP_CLOSE_WAIT || info.tcpi_state == TCP_LAST_ACK || info.tcpi_state == TCP_CLOSING;
    pollfd polled{socket_, POLLRDHUP, 0};  // a Unix socket
    return poll(&polled, 1, 0) > 0 && (polled.revents & (POLLRDHUP | POLLHUP)) != 0;
  }

  int descriptor() const noexcept override { return socket_; }

  void abandon_after_fork() noexcept override {
    // The parent's connection lives on: the descriptor is shared, so it must not be shut down.
    close(socket_);
    close(event_);
    socket_ = event_ = -1;
  }

  std::string peer() const override { return peer_; }
  const char* road() const noexcept override { return road_; }

 private:
  IoResult receive(std::span<std::byte> out, int flags) noexcept {
    ssize_t got;
    do got = recv(socket_, out.data(), out.size(), flags);
    while (got < 0 && errno == EINTR);
    if (got > 0) return {IoStatus::ok, size_t(got)};
    if (got == 0) return {IoStatus::closed};
    if (errno == EAGAIN || errno == EWOULDBLOCK) return {IoStatus::would_block};
    return {IoStatus::failed, 0, errno};
  }

  int socket_;
  int event_;
  std::string peer_;
  const char* const road_;
};

void set(int socket, int level, int option, int value) { setsockopt(socket, level, option, &value, sizeof value); }

// None of these is needed for correctness, so a system that refuses one is not an error.
void tune_tcp(int socket) {
  set(socket, IPPROTO_TCP, TCP_NODELAY, 1);
  set(socket, SOL_SOCKET, SO_KEEPALIVE, 1);
  notice_lost_peer(socket, LostPeer::is_the_end);
}

// The first bytes of a short file; empty: it cannot be read.
std::string read_short(const char* path) {
  int file = open(path, O_RDONLY | O_CLOEXEC);
  if (file < 0) return {};
  char text[64] = {};
  ssize_t got = read(file, text, sizeof text - 1);
  close(file);
  return {text, size_t(std::max<ssize_t>(got, 0))};
}

int read_limit(const char* path) { return atoi(read_short(path).c_str()); }

// `loopback`: whether the address cannot leave the machine.
ConnectionEnd end_of(const sockaddr_storage& storage, bool& loopback) {
  ConnectionEnd end;
  char text[INET6_ADDRSTRLEN] = {};
  if (storage.ss_family == AF_INET) {
    auto& address = reinterpret_cast<const sockaddr_in&>(storage);
    inet_ntop(AF_INET, &address.sin_addr, text, sizeof text);
    end.address = std::string(text) + ":" + std::to_string(ntohs(address.sin_port));
    loopback = ntohl(address.sin_addr.s_addr) >> 24 == IN_LOOPBACKNET;
  } else if (storage.ss_family == AF_INET6) {
    auto& address = reinterpret_cast<const sockaddr_in6&>(storage);
    if (IN6_IS_ADDR_V4MAPPED(&address.sin6_addr)) {
      sockaddr_storage plain{};
      auto& mapped = reinterpret_cast<sockaddr_in&>(plain);
      mapped.sin_family = AF_INET;
      mapped.sin_port = address.sin6_port;
      memcpy(&mapped.sin_addr, address.sin6_addr.s6_addr + 12, sizeof mapped.sin_addr);
      return end_of(plain, loopback);
    }
    inet_ntop(AF_INET6, &address.sin6_addr, text, sizeof text);
    end.address = "[" + std::string(text) + "]:" + std::to_string(ntohs(address.sin6_port));
    loopback = IN6_IS_ADDR_LOOPBACK(&address.sin6_addr);
  }
  return end;
}

}  // namespace

std::string this_machine() {
  std::string text = read_short("/proc/sys/kernel/random/boot_id");
  while (!text.empty() && text.back() == '\n') text.pop_back();
  return text;
}

namespace {

using NameOf = decltype(&getsockname);

// The end of a Unix socket that connects has no name, so both call it by the server's: what lies between them listens
// at another path.
ConnectionEnd unix_end(int descriptor, NameOf name_of_server, const std::string& machine) {
  sockaddr_un storage{};
  socklen_t size = sizeof storage;
  if (name_of_server(descriptor, reinterpret_cast<sockaddr*>(&storage), &size) != 0) return {};
  size_t bytes = size > offsetof(sockaddr_un, sun_path)
                     ? std::min<size_t>(size - offsetof(sockaddr_un, sun_path), sizeof storage.sun_path)
                     : 0;
  std::string path(storage.sun_path, bytes);
  if (!path.empty() && path[0] == 0) path[0] = '@';  // an abstract one
  path.resize(strnlen(path.data(), path.size()));
  return {"unix:" + path, machine};
}

}  // namespace

ConnectionEnd own_end_of(int descriptor) {
  sockaddr_storage storage{};
  socklen_t size = sizeof storage;
  if (getsockname(descriptor, reinterpret_cast<sockaddr*>(&storage), &size) != 0) return {};
  if (storage.ss_family == AF_UNIX) return unix_end(descriptor, &getpeername, this_machine());
  bool loopback = false;
  ConnectionEnd end = end_of(storage, loopback);
  if (loopback) end.machine = this_machine();
  return end;
}

ConnectionEnd other_end_of(int descriptor, const std::string& machine) {
  sockaddr_storage storage{};
  socklen_t size = sizeof storage;
  if (getpeername(descriptor, reinterpret_cast<sockaddr*>(&storage), &size) != 0) return {};
  if (storage.ss_family == AF_UNIX) return unix_end(descriptor, &getsockname, machine);
  bool loopback = false;
  ConnectionEnd end = end_of(storage, loopback);
  if (loopback) end.machine = machine;
  return end;
}

void notice_lost_peer(int descriptor, LostPeer how) {
  sockaddr_storage peer{};
  socklen_t size = sizeof peer;
  bool loopback = false;
  if (getpeername(descriptor, reinterpret_cast<sockaddr*>(&peer), &size) == 0) end_of(peer, loopback);
  const int within_ms = how == LostPeer::is_the_end ? kPeerLostMs : kReplaceablePeerLostMs;
  // A third of the time until the first question to a peer that is silent, and the rest for four more.
  constexpr int kProbes = 5;
  int idle_s = std::max(within_ms / 1000 / 3, 1);
  set(descriptor, IPPROTO_TCP, TCP_KEEPIDLE, idle_s);
  set(descriptor, IPPROTO_TCP, TCP_KEEPINTVL, std::max((within_ms / 1000 - idle_s) / kProbes, 1));
  set(descriptor, IPPROTO_TCP, TCP_KEEPCNT, kProbes);
  set(descriptor, IPPROTO_TCP, TCP_USER_TIMEOUT, how == LostPeer::by_heartbeat || loopback ? 0 : within_ms);
}

void size_socket_buffers(int descriptor, bool tcp) {
  // A size set by hand switches off the kernel's own sizing of a TCP buffer, which goes further than a small limit
  // would let us.
  if (!tcp || read_limit("/proc/sys/net/core/wmem_max") >= kSocketBufferBytes)
    set(descriptor, SOL_SOCKET, SO_SNDBUF, kSocketBufferBytes);
  if (!tcp || read_limit("/proc/sys/net/core/rmem_max") >= kSocketBufferBytes)
    set(descriptor, SOL_SOCKET, SO_RCVBUF, kSocketBufferBytes);
}

std::unique_ptr<Transport> adopt_stream(int descriptor, std::string peer) {
  int type = 0, domain = 0;
  socklen_t size = sizeof type;
  if (getsockopt(descriptor, SOL_SOCKET, SO_TYPE, &type, &size) != 0 || type != SOCK_STREAM) return nullptr;
  size = sizeof domain;
  if (getsockopt(descriptor, SOL_SOCKET, SO_DOMAIN, &domain, &size) != 0) return nullptr;
  int event = eventfd(0, EFD_NONBLOCK | EFD_CLOEXEC);
  if (event < 0) return nullptr;
  // Every call says for itself whether it waits.
  fcntl(descriptor, F_SETFL, fcntl(descriptor, F_GETFL) & ~O_NONBLOCK);
  fcntl(descriptor, F_SETFD, FD_CLOEXEC);
  bool tcp = domain == AF_INET || domain == AF_INET6;
  if (tcp) tune_tcp(descriptor);
  else size_socket_buffers(descriptor, false);
  return std::make_unique<StreamTransport>(descriptor, event, std::move(peer), tcp ? "tcp" : "unix");
}

}  // namespace gpuwire::transport
