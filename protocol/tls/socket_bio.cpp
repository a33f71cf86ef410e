#include "protocol/tls/socket_bio.hpp"

#include <sys/socket.h>

#include <algorithm>
#include <cerrno>
#include <cstring>

namespace gpuwire::tls {

SocketBio::SocketBio(int descriptor)
    : descriptor_(descriptor), buffer_(new std::byte[kUnsentBytesMax]), in_(new std::byte[kReceiveBytes]) {}

const BIO_METHOD* SocketBio::method() {
  static BIO_METHOD* const method = [] {
    BIO_METHOD* made = BIO_meth_new(BIO_get_new_index() | BIO_TYPE_SOURCE_SINK, "gpuwire socket");
    if (!made) return made;
    BIO_meth_set_read_ex(made, on_read);
    BIO_meth_set_write_ex(made, on_write);
    BIO_meth_set_ctrl(made, on_control);
    return made;
  }();
  return method;
}

bool SocketBio::attach(SSL* connection) {
  BIO* bio = method() ? BIO_new(method()) : nullptr;
  if (!bio) return false;
  BIO_set_data(bio, this);
  BIO_set_init(bio, 1);
  SSL_set_bio(connection, bio, bio);
  return true;
}

bool SocketBio::room_for(size_t bytes) const {
  size_t records = (bytes + kRecordBytes - 1) / kRecordBytes;
  return end_ + bytes + records * kRecordOverheadBytes <= kUnsentBytesMax;
}

SocketBio::Flushed SocketBio::flush() noexcept {
  while (unsent()) {
    ssize_t sent = ::send(descriptor_, buffer_.get() + begin_, end_ - begin_, MSG_NOSIGNAL | MSG_DONTWAIT);
    if (sent < 0 && errno == EINTR) continue;
    if (sent == 0 || (sent < 0 && (errno == EAGAIN || errno == EWOULDBLOCK || errno == ENOBUFS)))
      return Flushed::blocked;
    if (sent < 0) {
      error_ = errno;
      return Flushed::failed;
    }
    begin_ += size_t(sent);
  }
  begin_ = end_ = 0;
  return Flushed::all;
}

// Returns false if nothing arrived.
bool SocketBio::receive() {
  forget_block();
  ssize_t received;
  do received = ::recv(descriptor_, in_.get(), kReceiveBytes, MSG_DONTWAIT);
  while (received < 0 && errno == EINTR);
  in_begin_ = 0;
  in_end_ = size_t(std::max<ssize_t>(received, 0));
  if (received == 0) ended_ = true;
  else if (received < 0 && (errno == EAGAIN || errno == EWOULDBLOCK)) blocked_ = true;
  else if (received < 0) error_ = errno;
  return received > 0;
}

int SocketBio::on_read(BIO* bio, char* out, size_t size, size_t* got) {
  auto* own = static_cast<SocketBio*>(BIO_get_data(bio));
  BIO_clear_retry_flags(bio);
  *got = 0;
  if (!own->received() && !own->receive()) {
    if (own->blocked_) BIO_set_retry_read(bio);
    return 0;
  }
  *got = std::min(size, own->in_end_ - own->in_begin_);
  std::memcpy(out, own->in_.get() + own->in_begin_, *got);
  own->in_begin_ += *got;
  return 1;
}

int SocketBio::on_write(BIO* bio, const char* bytes, size_t size, size_t* written) {
  auto* own = static_cast<SocketBio*>(BIO_get_data(bio));
  BIO_clear_retry_flags(bio);
  *written = std::min(size, kUnsentBytesMax - own->end_);
  if (*written == 0) {
    BIO_set_retry_write(bio);
    return 0;
  }
  std::memcpy(own->buffer_.get() + own->end_, bytes, *written);
  own->end_ += *written;
  return 1;
}

long SocketBio::on_control(BIO* bio, int command, long, void*) {
  switch (command) {
    case BIO_CTRL_FLUSH: return 1;
    case BIO_CTRL_EOF: return static_cast<SocketBio*>(BIO_get_data(bio))->ended_;
    default: return 0;
  }
}

}  // namespace gpuwire::tls
