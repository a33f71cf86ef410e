#include "protocol/tls/channel.hpp"

#include <poll.h>

#include <algorithm>
#include <cerrno>
#include <chrono>
#include <cstring>

#include <arpa/inet.h>
#include <openssl/err.h>
#include <openssl/x509v3.h>

#include "protocol/threads/held_mutex.hpp"

namespace gpuwire::tls {

namespace {

using Clock = std::chrono::steady_clock;

bool is_address(const std::string& host) {
  unsigned char bytes[sizeof(in6_addr)];
  return inet_pton(AF_INET, host.c_str(), bytes) == 1 || inet_pton(AF_INET6, host.c_str(), bytes) == 1;
}

// Sets the name or address that the server's certificate has to be for.
bool expect_host(SSL* connection, const std::string& host) {
  X509_VERIFY_PARAM* checks = SSL_get0_param(connection);
  X509_VERIFY_PARAM_set_hostflags(checks, X509_CHECK_FLAG_NO_PARTIAL_WILDCARDS | X509_CHECK_FLAG_NEVER_CHECK_SUBJECT);
  if (is_address(host)) return X509_VERIFY_PARAM_set1_ip_asc(checks, host.c_str()) == 1;
  return X509_VERIFY_PARAM_set1_host(checks, host.data(), host.size()) == 1 &&
         SSL_set_tlsext_host_name(connection, host.c_str()) == 1;
}

}  // namespace

// Iterates over the bytes of several pieces.
class TlsChannel::Pieces {
 public:
  explicit Pieces(std::span<const iovec> pieces)
      : pieces_(pieces.first(std::min(pieces.size(), transport::kPiecesMax))) {
    for (const iovec& piece : pieces_) left_ += piece.iov_len;
  }
  size_t left() const { return left_; }
  // Returns the contiguous bytes at the front.
  std::span<const std::byte> front() {
    while (!pieces_.empty() && at_ == pieces_.front().iov_len) {
      pieces_ = pieces_.subspan(1);
      at_ = 0;
    }
    if (pieces_.empty()) return {};
    return {static_cast<const std::byte*>(pieces_.front().iov_base) + at_, pieces_.front().iov_len - at_};
  }
  void skip(size_t bytes) {
    while (bytes) {
      size_t step = std::min(bytes, front().size());
      at_ += step;
      left_ -= step;
      bytes -= step;
    }
  }

 private:
  std::span<const iovec> pieces_;
  size_t at_ = 0;
  size_t left_ = 0;
};

TlsChannel::TlsChannel(Connection connection, int descriptor, bool client, Wanted wanted)
    : socket_(descriptor),
      connection_(std::move(connection)),
      client_(client),
      wanted_(std::move(wanted)),
      record_(new std::byte[kRecordBytes]) {}

TlsChannel::~TlsChannel() = default;

std::unique_ptr<TlsChannel> TlsChannel::make(const Context& context, int descriptor, bool client, Wanted wanted) {
  ForkSafe fork_safe;
  ERR_clear_error();
  Connection connection(context ? SSL_new(context.get()) : nullptr);
  if (!connection) return nullptr;
  if (client && !wanted.host.empty() && !expect_host(connection.get(), wanted.host)) return nullptr;
  std::unique_ptr<TlsChannel> channel(new TlsChannel(std::move(connection), descriptor, client, std::move(wanted)));
  SSL* own = channel->connection_.get();
  if (!channel->socket_.attach(own)) return nullptr;
  set_fault_place(own, &channel->fault_);
  SSL_set_verify(own, SSL_get_verify_mode(own), note_certificate_fault);
  channel->keyed_ = has_key(context);
  client ? SSL_set_connect_state(own) : SSL_set_accept_state(own);
  return channel;
}

std::unique_ptr<TlsChannel> TlsChannel::connect(const Context& context, int descriptor, Wanted wanted) {
  return make(context, descriptor, true, std::move(wanted));
}

std::unique_ptr<TlsChannel> TlsChannel::accept(const Context& context, int descriptor) {
  return make(context, descriptor, false, {});
}

// --- the handshake -------------------------------------------------------------------------------------------------

TlsChannel::Step TlsChannel::step() {
  std::lock_guard lock(mutex_);
  return step_locked();
}

TlsChannel::Step TlsChannel::step_locked() {
  if (broken_) return Step::failed;
  int result, error = SSL_ERROR_NONE;
  if (!established_) {
    ForkSafe fork_safe;
    ERR_clear_error();
    result = SSL_do_handshake(connection_.get());
    if (result != 1) error = SSL_get_error(connection_.get(), result);
    if (error == SSL_ERROR_NONE && keyed_ && !SSL_session_reused(connection_.get())) {
      failure_ = "TLS was made without the key of this session";
      broken_ = EPROTO;
      return Step::failed;
    }
  }
  const bool over = error != SSL_ERROR_NONE && error != SSL_ERROR_WANT_READ && error != SSL_ERROR_WANT_WRITE;
  if (over) note_failure();
  // Also sends an alert, so that the other side can report the fault.
  auto flushed = socket_.flush();
  if (over) {
    fail(socket_.error() ? socket_.error() : EPROTO);
    return Step::failed;
  }
  if (flushed == SocketBio::Flushed::failed) {
    sending_failed();
    return Step::failed;
  }
  if (error == SSL_ERROR_NONE) established_ = true;
  if (flushed == SocketBio::Flushed::blocked) return Step::wants_write;
  if (error == SSL_ERROR_NONE) pending_ = more_here();
  return error == SSL_ERROR_NONE ? Step::done : Step::wants_read;
}

tl::expected<void, std::string> TlsChannel::handshake(Nanoseconds timeout) {
  auto deadline = Clock::now() + timeout;
  for (;;) {
    Step now = step();
    if (now == Step::done) return {};
    if (now == Step::failed) return tl::unexpected(failure());
    auto left = std::chrono::duration_cast<std::chrono::milliseconds>(deadline - Clock::now()).count();
    if (left <= 0) return tl::unexpected(std::string("the TLS handshake was not finished in time"));
    pollfd ready{socket_.descriptor(), short(now == Step::wants_read ? POLLIN : POLLOUT), 0};
    ::poll(&ready, 1, int(left));
  }
}

// --- failures ------------------------------------------------------------------------------------------------------

// Records the failure of the OpenSSL call that has just failed.
void TlsChannel::note_failure() {
  if (socket_.error() || (socket_.ended() && !fault_.error)) {
    ERR_clear_error();
    dropped_ = true;
    if (!socket_.error()) failure_ = closed_text();
  } else {
    failure_ = failure_text(client_, fault_, wanted_);
  }
}

// The socket accepts nothing more. If an alert arrived before, the alert has the reason.
IoResult TlsChannel::sending_failed() {
  const int error = socket_.error();
  {
    ForkSafe fork_safe;
    ERR_clear_error();
    unsigned char next;
    size_t got = 0;
    if (SSL_peek_ex(connection_.get(), &next, 1, &got) != 1 && alert_came())
      failure_ = failure_text(client_, fault_, wanted_);
    ERR_clear_error();
  }
  dropped_ = failure_.empty();
  if (dropped_ && error == EPIPE) failure_ = closed_text();
  return fail(error);
}

std::string TlsChannel::closed_text() const {
  return client_ ? "the server closed the connection" : "the client closed the connection";
}

IoResult TlsChannel::fail(int error) {
  if (!broken_) broken_ = error ? error : EPROTO;
  if (failure_.empty()) failure_ = transport::describe({IoStatus::failed, 0, broken_});
  return {IoStatus::failed, 0, broken_};
}

std::string TlsChannel::failure() const {
  std::lock_guard lock(mutex_);
  return failure_;
}

bool TlsChannel::dropped() const {
  std::lock_guard lock(mutex_);
  return dropped_;
}

bool TlsChannel::ended() const {
  std::lock_guard lock(mutex_);
  return socket_.ended();
}

// --- sending -------------------------------------------------------------------------------------------------------

bool TlsChannel::encrypt_record(const std::byte* bytes, size_t size) {
  if (records_ >= records_per_key_) {
    if (SSL_key_update(connection_.get(), SSL_KEY_UPDATE_NOT_REQUESTED) != 1) return false;
    records_ = 0;
  }
  size_t written = 0;
  ++records_;
  return SSL_write_ex(connection_.get(), bytes, size, &written) == 1 && written == size;
}

// Encrypts as much as there is room for. Long pieces are encrypted in place, one record after the other; short pieces
// share a record.
bool TlsChannel::encrypt(Pieces& pieces, size_t& encrypted) {
  // There must be room for one more record than the data need, because a new key is announced in a record of its own.
  while (pieces.left() && encrypted < kSendBytesMax && socket_.room_for(2 * kRecordBytes)) {
    std::span<const std::byte> front = pieces.front();
    size_t size = std::min(front.size(), kRecordBytes);
    const std::byte* from = front.data();
    if (size < kRecordBytes && size < pieces.left()) {
      size = 0;
      from = record_.get();
      while (size < kRecordBytes && pieces.left()) {
        std::span<const std::byte> part = pieces.front();
        size_t step = std::min(part.size(), kRecordBytes - size);
        std::memcpy(record_.get() + size, part.data(), step);
        pieces.skip(step);
        size += step;
      }
    } else {
      pieces.skip(size);
    }
    if (!encrypt_record(from, size)) return false;
    encrypted += size;
  }
  return true;
}

IoResult TlsChannel::try_send(std::span<const iovec> offered) noexcept {
  std::lock_guard lock(mutex_);
  if (broken_) return {IoStatus::failed, 0, broken_};
  if (shut_) return {IoStatus::failed, 0, EPIPE};
  Pieces pieces(offered);
  auto flushed = socket_.flush();
  if (flushed == SocketBio::Flushed::blocked) return {IoStatus::would_block};
  size_t told = std::min(owed_, pieces.left());
  pieces.skip(told);
  owed_ -= told;
  while (flushed == SocketBio::Flushed::all && pieces.left() && told < kSendBytesMax) {
    size_t encrypted = 0;
    ERR_clear_error();
    if (!encrypt(pieces, encrypted)) {
      note_failure();
      return fail(EPROTO);
    }
    flushed = socket_.flush();
    (flushed == SocketBio::Flushed::all ? told : owed_) += encrypted;
  }
  if (flushed == SocketBio::Flushed::failed) return sending_failed();
  return told ? IoResult{IoStatus::ok, told} : IoResult{IoStatus::would_block};
}

// --- receiving -----------------------------------------------------------------------------------------------------

// SSL_read_ex() has returned nothing; `error` is the result of SSL_get_error().
IoResult TlsChannel::receive_ended(int error) {
  pending_ = false;
  switch (error) {
    case SSL_ERROR_WANT_READ:
    case SSL_ERROR_WANT_WRITE:
      // A record may have carried no data, with more records behind it.
      pending_ = error == SSL_ERROR_WANT_READ && !socket_.blocked() && more_here();
      return {IoStatus::would_block};
    case SSL_ERROR_ZERO_RETURN: return {IoStatus::closed};
    default: break;
  }
  if (socket_.ended() && shut_) {
    ERR_clear_error();
    return {IoStatus::closed};
  }
  note_failure();
  // Without close_notify a third party may have ended the connection, and bytes may be missing.
  return fail(socket_.error() ? socket_.error() : socket_.ended() ? ECONNRESET : EPROTO);
}

IoResult TlsChannel::receive(std::span<std::byte> out) {
  size_t got = 0;
  IoResult result;
  do {
    size_t more = 0;
    ERR_clear_error();
    socket_.forget_block();
    int read = SSL_read_ex(connection_.get(), out.data() + got, out.size() - got, &more);
    if (read == 1) {
      got += more;
      pending_ = more_here();
      continue;
    }
    result = receive_ended(SSL_get_error(connection_.get(), read));
    break;
  } while (pending_ && got < out.size());
  // OpenSSL writes a record in answer to the other side's request for a new key. If the socket is full, the next
  // sending thread sends it.
  if (socket_.unsent()) socket_.flush();
  if (got) return {IoStatus::ok, got};
  return result;
}

IoResult TlsChannel::try_receive(std::span<std::byte> out) noexcept {
  std::lock_guard lock(mutex_);
  if (broken_) return {IoStatus::failed, 0, broken_};
  if (!held_bytes_) return receive(out);
  const size_t given = std::min(out.size(), held_bytes_);
  std::memcpy(out.data(), held_.data(), given);
  held_bytes_ -= given;
  std::memmove(held_.data(), held_.data() + given, held_bytes_);
  return {IoStatus::ok, given};
}

// Keeps the peeked bytes itself, because SSL_peek() stops at the end of a record, and a frame's header may be in two
// records.
IoResult TlsChannel::try_peek(std::span<std::byte> out) noexcept {
  std::lock_guard lock(mutex_);
  if (broken_) return {IoStatus::failed, 0, broken_};
  const size_t wanted = std::min(out.size(), held_.size());
  if (held_bytes_ < wanted) {
    IoResult more = receive(std::span(held_).first(wanted).subspan(held_bytes_));
    if (more.status != IoStatus::ok && !held_bytes_) return more;
    held_bytes_ += more.bytes;
  }
  const size_t seen = std::min(wanted, held_bytes_);
  std::memcpy(out.data(), held_.data(), seen);
  return {IoStatus::ok, seen};
}

bool TlsChannel::pending() const noexcept {
  std::lock_guard lock(mutex_);
  return held_bytes_ || pending_ || broken_;
}

bool TlsChannel::unsent() const noexcept {
  std::lock_guard lock(mutex_);
  return socket_.unsent();
}

bool TlsChannel::drained() const noexcept {
  std::lock_guard lock(mutex_);
  return !held_bytes_ && !more_here();
}

// OpenSSL was interrupted inside a call, so this channel does not call it any more.
bool TlsChannel::take_back_from_left_call() noexcept {
  if (!is_held_by_this_thread(mutex_)) return false;
  shut_ = true;
  if (!broken_) broken_ = EPROTO;
  mutex_.unlock();
  return true;
}

void TlsChannel::close_notify() noexcept {
  std::lock_guard lock(mutex_);
  if (std::exchange(shut_, true) || broken_ || !established_) return;
  ERR_clear_error();
  SSL_shutdown(connection_.get());
  ERR_clear_error();
  socket_.flush();
}

tl::expected<SessionKey, std::string> TlsChannel::exported_key() {
  std::lock_guard lock(mutex_);
  return tls::exported_key(connection_.get());
}

std::string TlsChannel::binding() {
  std::lock_guard lock(mutex_);
  auto key = tls::exported_key(connection_.get(), kBindingLabel);
  return key ? std::string(key->begin(), key->end()) : std::string();
}

}  // namespace gpuwire::tls
