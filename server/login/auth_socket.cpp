#include "server/login/auth_socket.hpp"

#include <cerrno>
#include <cstring>

#include <fmt/format.h>
#include <openssl/err.h>
#include <sys/socket.h>

#include "protocol/tls/context.hpp"
#include "server/identity/client_certificates.hpp"
#include "server/login/limits.hpp"

namespace gpuwire::server {
namespace {

// Checked before each read of libssl, which would otherwise read the length that a message claims.
long limit_reading(BIO* bio, int operation, const char*, size_t, int, long, int result, size_t*) {
  return operation == BIO_CB_READ && BIO_number_read(bio) > kHandshakeBytesMax ? -1 : result;
}

bool must_wait(int error) { return error == EAGAIN || error == EWOULDBLOCK || error == EINTR; }

}  // namespace

bool AuthSocket::begin_tls(const ServerIdentity& identity) {
  tls_ = identity.connect(socket_);
  if (tls_) BIO_set_callback_ex(SSL_get_rbio(tls_.get()), limit_reading);
  return bool(tls_);
}

IoStep AuthSocket::failed(std::string reason) {
  failure_ = std::move(reason);
  return IoStep::failed;
}

IoStep AuthSocket::step_of(int result, const char* what) {
  if (bytes_received() > kHandshakeBytesMax)
    return failed(fmt::format("more than {} bytes before the session", kHandshakeBytesMax));
  switch (SSL_get_error(tls_.get(), result)) {
    case SSL_ERROR_WANT_READ: return IoStep::want_read;
    case SSL_ERROR_WANT_WRITE: return IoStep::want_write;
    case SSL_ERROR_ZERO_RETURN: return IoStep::closed;
    case SSL_ERROR_SYSCALL:
      return ERR_peek_error() ? failed(fmt::format("{}: {}", what, tls::take_error())) : IoStep::closed;
    default:
      if (ERR_GET_REASON(ERR_peek_error()) == SSL_R_UNEXPECTED_EOF_WHILE_READING) return IoStep::closed;
      return failed(fmt::format("{}: {}", what, tls::take_error()));
  }
}

IoStep AuthSocket::handshake() {
  ERR_clear_error();
  int result = SSL_do_handshake(tls_.get());
  return result == 1 ? IoStep::done : step_of(result, "TLS handshake");
}

IoStep AuthSocket::read(std::span<std::byte> out, size_t& moved) {
  moved = 0;
  if (tls_) {
    ERR_clear_error();
    int result = SSL_read_ex(tls_.get(), out.data(), out.size(), &moved);
    return result == 1 ? IoStep::done : step_of(result, "TLS");
  }
  ssize_t got = ::recv(socket_, out.data(), out.size(), MSG_DONTWAIT);
  if (got == 0) return IoStep::closed;
  if (got < 0) return must_wait(errno) ? IoStep::want_read : failed(std::strerror(errno));
  moved = size_t(got);
  plain_bytes_received_ += moved;
  return IoStep::done;
}

IoStep AuthSocket::write(std::string_view data, size_t& moved) {
  moved = 0;
  if (tls_) {
    ERR_clear_error();
    int result = SSL_write_ex(tls_.get(), data.data(), data.size(), &moved);
    return result == 1 ? IoStep::done : step_of(result, "TLS");
  }
  ssize_t put = ::send(socket_, data.data(), data.size(), MSG_DONTWAIT | MSG_NOSIGNAL);
  if (put < 0) return must_wait(errno) ? IoStep::want_write : failed(std::strerror(errno));
  moved = size_t(put);
  return IoStep::done;
}

IoStep AuthSocket::poll() {
  char byte;
  if (tls_) {
    ERR_clear_error();
    int result = SSL_peek(tls_.get(), &byte, 1);
    return result > 0 ? IoStep::done : step_of(result, "TLS");
  }
  ssize_t got = ::recv(socket_, &byte, 1, MSG_PEEK | MSG_DONTWAIT);
  if (got == 0) return IoStep::closed;
  if (got < 0) return must_wait(errno) ? IoStep::want_read : failed(std::strerror(errno));
  return IoStep::done;
}

void AuthSocket::send_end() {
  if (!tls_ || !SSL_is_init_finished(tls_.get())) return;
  ERR_clear_error();
  SSL_shutdown(tls_.get());
}

uint64_t AuthSocket::bytes_received() const {
  return tls_ ? BIO_number_read(SSL_get_rbio(tls_.get())) : plain_bytes_received_;
}

std::optional<ShownCertificate> AuthSocket::shown_certificate() const {
  return tls_ ? server::shown_certificate(tls_.get()) : std::nullopt;
}

tl::expected<std::string, std::string> AuthSocket::session_key() const {
  if (!tls_) return std::string();
  auto key = tls::exported_key(tls_.get());
  if (!key) return tl::unexpected(key.error());
  return std::string(reinterpret_cast<const char*>(key->data()), key->size());
}

}  // namespace gpuwire::server
