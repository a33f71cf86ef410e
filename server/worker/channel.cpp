#include "server/worker/channel.hpp"

#include <cerrno>

namespace gpuwire::server {

namespace {

ssize_t as_system_call(const transport::IoResult& result) {
  switch (result.status) {
    case transport::IoStatus::ok: return ssize_t(result.bytes);
    case transport::IoStatus::closed: return 0;
    case transport::IoStatus::would_block: errno = EAGAIN; break;
    case transport::IoStatus::failed: errno = result.error; break;
  }
  return -1;
}

}  // namespace

ssize_t Channel::receive_tls(void* out, size_t size) { return as_system_call(tls_->try_receive({static_cast<std::byte*>(out), size})); }

bool Channel::input() const {
  if (pending()) return true;
  std::byte probe;
  ssize_t got = ::recv(socket_, &probe, 1, MSG_DONTWAIT | MSG_PEEK);
  return got >= 0 || (errno != EAGAIN && errno != EINTR);
}

ssize_t Channel::send(iovec* parts, size_t count) {
  ssize_t sent = send_now(parts, count);
  meter_.sent(sent);
  return sent;
}

ssize_t Channel::send_now(iovec* parts, size_t count) {
  if (tls_) return as_system_call(tls_->try_send({parts, count}));
  msghdr message{};
  message.msg_iov = parts;
  message.msg_iovlen = count;
  return ::sendmsg(socket_, &message, MSG_DONTWAIT | MSG_NOSIGNAL);
}

void Channel::finish() {
  if (tls_) tls_->close_notify();
  ::shutdown(socket_, SHUT_WR);
}

}  // namespace gpuwire::server
