#include "server/web/tls_relay.hpp"

#include <string_view>
#include <utility>

#include <boost/asio/ssl/error.hpp>
#include <boost/asio/write.hpp>
#include <openssl/bio.h>
#include <openssl/err.h>
#include <openssl/ssl.h>

#include "server/identity/client_certificates.hpp"

namespace gpuwire::server::web {
namespace {

namespace asio = boost::asio;
using asio::ip::tcp;

// Asked before each read of libssl's.
long limit_reading(BIO* bio, int operation, const char*, size_t, int, long, int result, size_t*) {
  return operation == BIO_CB_READ && BIO_number_read(bio) > kHandshakeBytesMax ? -1 : result;
}

std::string address_of(const tcp::socket& socket) {
  boost::system::error_code error;
  const auto endpoint = socket.remote_endpoint(error);
  return error ? std::string("?") : endpoint.address().to_string();
}

constexpr std::string_view kPlainAnswer =
    "HTTP/1.1 400 Bad Request\r\nServer: gpuwire-web\r\nContent-Type: text/plain; charset=utf-8\r\n"
    "Content-Length: 57\r\nConnection: close\r\n\r\n"
    "This page is encrypted: its address begins with https://.";

}  // namespace

TlsRelay::TlsRelay(TlsRelayOwner& owner, tcp::socket socket, asio::ssl::context& context)
    : owner_(owner),
      visitor_(std::move(socket), context),
      peer_(address_of(visitor_.next_layer())),
      page_(visitor_.get_executor()),
      timer_(visitor_.get_executor()) {}

// Keeps the relay alive for the callback, which is dropped when the relay has ended.
template <class Callback>
auto TlsRelay::guard(Callback callback) {
  return [self = shared_from_this(), callback = std::move(callback)](auto&&... more) mutable {
    if (self->open_) callback(std::forward<decltype(more)>(more)...);
  };
}

void TlsRelay::limit(std::chrono::milliseconds time) {
  timer_.expires_after(time);
  timer_.async_wait(guard([this](ErrorCode stopped) {
    if (!stopped) end();
  }));
}

void TlsRelay::begin() {
  limit(kHandshakeTime);
  BIO_set_callback_ex(SSL_get_rbio(visitor_.native_handle()), limit_reading);
  visitor_.async_handshake(asio::ssl::stream_base::server, guard([this](ErrorCode error) {
                             if (error) return fail_handshake(error);
                             BIO_set_callback_ex(SSL_get_rbio(visitor_.native_handle()), nullptr);
                             owner_.shaken_hands(*this, shown_certificate(visitor_.native_handle()));
                           }));
}

void TlsRelay::fail_handshake(ErrorCode error) {
  const bool of_tls = error.category() == asio::error::get_ssl_category();
  if (of_tls && ERR_GET_REASON(static_cast<unsigned long>(error.value())) == SSL_R_HTTP_REQUEST) return answer_plain();
  // libssl has written an alert; closing with unread bytes would take it back.
  if (of_tls) return linger();
  end();
}

void TlsRelay::answer_plain() {
  asio::async_write(visitor_.next_layer(), asio::buffer(kPlainAnswer), guard([this](ErrorCode error, size_t) {
                      if (error) return end();
                      linger();
                    }));
}

void TlsRelay::linger() {
  ErrorCode ignored;
  visitor_.next_layer().shutdown(tcp::socket::shutdown_send, ignored);
  visitor_.next_layer().async_read_some(asio::buffer(from_visitor_), guard([this](ErrorCode error, size_t) {
                                          if (error) return end();
                                          linger();
                                        }));
}

void TlsRelay::pass_on(asio::local::stream_protocol::socket page) {
  if (!open_) return;
  timer_.cancel();
  page_ = std::move(page);
  read_visitor();
  read_page();
}

// The page's process bounds the time in which a request comes.
void TlsRelay::read_visitor() {
  visitor_.async_read_some(asio::buffer(from_visitor_), guard([this](ErrorCode error, size_t bytes) {
                             if (closing_) return error ? end() : read_visitor();  // what comes late has no reader
                             if (error) return end();
                             asio::async_write(page_, asio::buffer(from_visitor_, bytes),
                                               guard([this](ErrorCode failed, size_t) {
                                                 // The page closes a connection while requests are on their way.
                                                 if (!failed || closing_) return read_visitor();
                                                 if (failed != asio::error::broken_pipe) return end();
                                               }));
                           }));
}

void TlsRelay::read_page() {
  page_.async_read_some(asio::buffer(from_page_), guard([this](ErrorCode error, size_t bytes) {
                          if (error) return close_to_visitor();
                          limit(kRelayWriteTime);
                          asio::async_write(visitor_, asio::buffer(from_page_, bytes),
                                            guard([this](ErrorCode failed, size_t) {
                                              if (failed) return end();
                                              timer_.cancel();
                                              read_page();
                                            }));
                        }));
}

// The visitor gets TLS's closing alert, and has a moment to close.
void TlsRelay::close_to_visitor() {
  closing_ = true;
  ErrorCode ignored;
  page_.close(ignored);
  limit(kRelayCloseTime);
  owner_.closing(*this);
  visitor_.async_shutdown(guard([this](ErrorCode) { end(); }));
}

void TlsRelay::end() {
  if (!std::exchange(open_, false)) return;
  const auto self = shared_from_this();
  ErrorCode ignored;
  timer_.cancel();
  page_.close(ignored);
  visitor_.next_layer().close(ignored);
  owner_.left(*this);
}

}  // namespace gpuwire::server::web
