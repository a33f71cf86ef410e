#include "protocol/transport/stream.hpp"

#include <arpa/inet.h>
#include <fcntl.h>
#include <netinet/in.h>
#include <netinet/tcp.h>
#include <poll.h>
#include <sys/ioctl.h>
#include <sys/socket.h>
#include <sys/syscall.h>
#include <sys/un.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <chrono>
#include <cstddef>
#include <cstdlib>
#include <cstring>
#include <ctime>

#include "protocol/threads/polling.hpp"
#include "protocol/transport/own_descriptor.hpp"

namespace gpuwire::transport {

namespace {

constexpr size_t kCopiedBytes = 16u << 10;
// The remaining bytes of bulk up to this size arrive in less time than a wake-up takes, so the waiting thread polls
// first.
constexpr size_t kPolledForBytesMax = 4u << 20;

class StreamTransport final : public Transport {
 public:
  StreamTransport(OwnDescriptor socket, Waker waker, std::string peer, const char* road)
      : own_(std::move(socket)), socket_(own_.get()), waker_(std::move(waker)), peer_(std::move(peer)), road_(road) {}

  IoResult try_send(std::span<const iovec> pieces) noexcept override {
    if (!is_ours()) return {IoStatus::failed, 0, EBADF};
    msghdr message{};
    message.msg_iov = const_cast<iovec*>(pieces.data());
    message.msg_iovlen = std::min(pieces.size(), kPiecesMax);
    ssize_t sent;
    do sent = sendmsg(socket_, &message, MSG_NOSIGNAL | MSG_DONTWAIT);
    while (sent < 0 && errno == EINTR);
    if (sent < 0 && errno == EFAULT) sent = send_copied(pieces);
    if (sent > 0) return {IoStatus::ok, size_t(sent)};
    if (sent == 0 || errno == EAGAIN || errno == EWOULDBLOCK || errno == ENOBUFS) return {IoStatus::would_block};
    return {IoStatus::failed, 0, errno};
  }

  IoResult try_receive(std::span<std::byte> out) noexcept override { return receive(out, MSG_DONTWAIT); }
  IoResult receive_bulk(std::span<std::byte> out) noexcept override {
    if (poll_.count() != 0 && out.size() <= kPolledForBytesMax) {
      const auto begun = std::chrono::steady_clock::now();
      do {
        const IoResult result = receive(out, MSG_DONTWAIT);
        if (result.status != IoStatus::would_block) return result;
        relax();
      } while (std::chrono::steady_clock::now() - begun < poll_);
    }
    return receive(out, MSG_WAITALL);
  }

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
    pollfd polled[2] = {{socket_, 0, 0}, {waker_.descriptor(), POLLIN, 0}};
    if (interest & kReadable) polled[0].events |= POLLIN;
    if (interest & kWritable) polled[0].events |= POLLOUT;
    // poll() would report the end of a socket without requested events again and again.
    if (!polled[0].events) polled[0].fd = -1;
    auto count = std::max<Nanoseconds::rep>(timeout.count(), 0);
    timespec limit{time_t(count / 1'000'000'000), long(count % 1'000'000'000)};
    if (ppoll(polled, interest & kWoken ? 2 : 1, &limit, nullptr) <= 0) return 0;
    unsigned ready = 0;
    if (polled[0].revents & (POLLIN | POLLERR | POLLHUP | POLLNVAL)) ready |= kReadable;
    if (polled[0].revents & (POLLOUT | POLLERR | POLLHUP | POLLNVAL)) ready |= kWritable;
    if ((interest & kWoken) && polled[1].revents && waker_.drain()) ready |= kWoken;
    return ready & interest;
  }

  void wake() noexcept override { waker_.wake(); }

  void finish() noexcept override { shut(SHUT_WR); }
  void shutdown() noexcept override { shut(SHUT_RDWR); }
  // TCP sends nothing to the peer for this.
  void stop_receiving() noexcept override { shut(SHUT_RD); }
  bool is_ours() noexcept override { return own_.is_ours_lately(); }

  void reset() noexcept override {
    // AF_UNSPEC dissolves a TCP connection: the kernel resets it and wakes the waiting threads. Another thread may be
    // receiving, which the kernel allows. The thread sanitizer treats each connect() as the creation of a descriptor
    // that no other thread uses yet, so the call bypasses the C library.
    if (!own_.is_ours()) return;
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
    return ::poll(&polled, 1, 0) > 0 && (polled.revents & (POLLRDHUP | POLLHUP)) != 0;
  }

  int descriptor() const noexcept override { return socket_; }

  void abandon_after_fork() noexcept override {
    // The parent's connection stays open: the descriptor is shared, so it must not be shut down.
    own_.close();
    waker_.close();
    socket_ = -1;
  }

  std::string peer() const override { return peer_; }
  const char* road() const noexcept override { return road_; }
  bool can_be_left() const noexcept override { return std::strcmp(road_, "tcp") == 0; }

 private:
  void shut(int how) noexcept {
    if (own_.is_ours()) ::shutdown(socket_, how);
  }

  // The memory is the program's, and the kernel could not read or write it (EFAULT). memcpy() raises the same fault in
  // the program as without gpuwire. A handler of the program may repair the memory, and the connection then continues.
  // No lock is held.
  ssize_t send_copied(std::span<const iovec> pieces) noexcept {
    std::byte bytes[kCopiedBytes];
    size_t filled = 0;
    for (const iovec& piece : pieces) {
      const size_t step = std::min(piece.iov_len, sizeof bytes - filled);
      std::memcpy(bytes + filled, piece.iov_base, step);
      filled += step;
    }
    ssize_t sent;
    do sent = send(socket_, bytes, filled, MSG_NOSIGNAL | MSG_DONTWAIT);
    while (sent < 0 && errno == EINTR);
    return sent;
  }
  ssize_t receive_copied(std::span<std::byte> out) noexcept {
    std::byte bytes[kCopiedBytes];
    ssize_t got;
    do got = recv(socket_, bytes, std::min(out.size(), sizeof bytes), MSG_DONTWAIT);
    while (got < 0 && errno == EINTR);
    if (got > 0) std::memcpy(out.data(), bytes, size_t(got));
    return got;
  }

  IoResult receive(std::span<std::byte> out, int flags) noexcept {
    if (!is_ours()) return {IoStatus::failed, 0, EBADF};
    ssize_t got;
    do got = recv(socket_, out.data(), out.size(), flags);
    while (got < 0 && errno == EINTR);
    if (got < 0 && errno == EFAULT) got = receive_copied(out);
    if (got > 0) return {IoStatus::ok, size_t(got)};
    if (got == 0) return {IoStatus::closed};
    if (errno == EAGAIN || errno == EWOULDBLOCK) return {IoStatus::would_block};
    return {IoStatus::failed, 0, errno};
  }

  OwnDescriptor own_;
  int socket_;  // the number of own_
  Waker waker_;
  std::string peer_;
  const char* const road_;
  const std::chrono::nanoseconds poll_ = brief_poll();
};

void set(int socket, int level, int option, int value) { setsockopt(socket, level, option, &value, sizeof value); }

// Correctness needs none of these options, so a system that refuses one is not an error.
void tune_tcp(int socket) {
  set(socket, IPPROTO_TCP, TCP_NODELAY, 1);
  set(socket, SOL_SOCKET, SO_KEEPALIVE, 1);
  notice_lost_peer(socket, LostPeer::is_the_end);
}

// Returns the first bytes of a short file, or an empty string if it cannot be read.
std::string read_short(const char* path) {
  int file = open(path, O_RDONLY | O_CLOEXEC);
  if (file < 0) return {};
  char text[64] = {};
  ssize_t got = read(file, text, sizeof text - 1);
  close(file);
  return {text, size_t(std::max<ssize_t>(got, 0))};
}

int read_limit(const char* path) { return atoi(read_short(path).c_str()); }

// `loopback`: set to whether the address cannot leave the machine.
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

// The connecting end of a Unix socket has no name, so both ends use the server's name: a proxy between them listens at
// another path.
ConnectionEnd unix_end(int descriptor, NameOf name_of_server, const std::string& machine) {
  sockaddr_un storage{};
  socklen_t size = sizeof storage;
  if (name_of_server(descriptor, reinterpret_cast<sockaddr*>(&storage), &size) != 0) return {};
  size_t bytes = size > offsetof(sockaddr_un, sun_path)
                     ? std::min<size_t>(size - offsetof(sockaddr_un, sun_path), sizeof storage.sun_path)
                     : 0;
  std::string path(storage.sun_path, bytes);
  if (!path.empty() && path[0] == 0) path[0] = '@';  // an abstract name
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
  // The first probe of a silent peer is sent after a third of the time. The probes divide the remaining time.
  constexpr int kProbes = 5;
  int idle_s = std::max(within_ms / 1000 / 3, 1);
  set(descriptor, IPPROTO_TCP, TCP_KEEPIDLE, idle_s);
  set(descriptor, IPPROTO_TCP, TCP_KEEPINTVL, std::max((within_ms / 1000 - idle_s) / kProbes, 1));
  set(descriptor, IPPROTO_TCP, TCP_KEEPCNT, kProbes);
  set(descriptor, IPPROTO_TCP, TCP_USER_TIMEOUT, how == LostPeer::by_heartbeat || loopback ? 0 : within_ms);
}

void size_socket_buffers(int descriptor, bool tcp) {
  // An explicit size disables the kernel's automatic sizing of a TCP buffer, which grows further than a small limit
  // would allow.
  if (!tcp || read_limit("/proc/sys/net/core/wmem_max") >= kSocketBufferBytes)
    set(descriptor, SOL_SOCKET, SO_SNDBUF, kSocketBufferBytes);
  if (!tcp || read_limit("/proc/sys/net/core/rmem_max") >= kSocketBufferBytes)
    set(descriptor, SOL_SOCKET, SO_RCVBUF, kSocketBufferBytes);
}

namespace {

// The kernel's automatic sizing starts with a window of 64 KiB, which is one segment on loopback, and the window may
// stay that small: it grows by the bytes received within a round trip, which the window itself bounds. A copy of medium
// size then needs a wake-up for every 64 KiB. Setting SO_RCVLOWAT makes the kernel grow the buffer to that many bytes
// at once (tcp_set_rcvlowat() of Linux, net/ipv4/tcp.c), up to half of the maximum in tcp_rmem. If the size was set
// explicitly, this changes nothing.
void open_receive_window(int descriptor) {
  set(descriptor, SOL_SOCKET, SO_RCVLOWAT, kSocketBufferBytes);
  set(descriptor, SOL_SOCKET, SO_RCVLOWAT, 1);
}

}  // namespace

std::unique_ptr<Transport> adopt_stream(int descriptor, std::string peer) {
  int type = 0, domain = 0;
  socklen_t size = sizeof type;
  if (getsockopt(descriptor, SOL_SOCKET, SO_TYPE, &type, &size) != 0 || type != SOCK_STREAM) return nullptr;
  size = sizeof domain;
  if (getsockopt(descriptor, SOL_SOCKET, SO_DOMAIN, &domain, &size) != 0) return nullptr;
  Waker waker = Waker::make();
  if (!waker.valid()) return nullptr;
  OwnDescriptor own(descriptor);
  descriptor = own.get();
  // Each call passes its own flag for whether it waits.
  fcntl(descriptor, F_SETFL, fcntl(descriptor, F_GETFL) & ~O_NONBLOCK);
  fcntl(descriptor, F_SETFD, FD_CLOEXEC);
  bool tcp = domain == AF_INET || domain == AF_INET6;
  if (tcp) {
    tune_tcp(descriptor);
    open_receive_window(descriptor);
  } else {
    size_socket_buffers(descriptor, false);
  }
  return std::make_unique<StreamTransport>(std::move(own), std::move(waker), std::move(peer), tcp ? "tcp" : "unix");
}

}  // namespace gpuwire::transport
