// A client's connection before its session: reads and writes bytes, plain or inside TLS, without blocking.
#pragma once

#include <cstddef>
#include <cstdint>
#include <optional>
#include <span>
#include <string>
#include <string_view>

#include <tl/expected.hpp>

#include "protocol/tls/openssl.hpp"
#include "server/base/owned_descriptor.hpp"
#include "server/identity/server_identity.hpp"
#include "server/identity/tenant_choice.hpp"

namespace gpuwire::server {

// done: progress was made; want_*: the socket has to become ready first; closed: the client has closed; failed:
// failure() has the reason.
enum class IoStep : uint8_t { done, want_read, want_write, closed, failed };

// Borrows a socket that does not block. One thread.
class AuthSocket {
 public:
  explicit AuthSocket(int socket) : socket_(socket) {}

  // Switches to TLS. False: out of memory.
  bool begin_tls(const ServerIdentity& identity);
  bool encrypted() const { return bool(tls_); }
  IoStep handshake();

  // `moved`: the number of bytes, with done at least one.
  IoStep read(std::span<std::byte> out, size_t& moved);
  IoStep write(std::string_view data, size_t& moved);

  // Checks the client while it may not send. done: it has sent data.
  IoStep poll();
  // Returns whether bytes were taken from the socket and not read yet.
  bool holds_bytes() const { return tls_ && SSL_has_pending(tls_.get()); }
  // Sends the closing alert to a client inside TLS, as far as possible without blocking.
  void send_end();

  // Returns the bytes of the socket, including those of TLS.
  uint64_t bytes_received() const;
  // After the handshake.
  std::optional<ShownCertificate> shown_certificate() const;
  tl::expected<std::string, std::string> session_key() const;
  const std::string& failure() const { return failure_; }

 private:
  IoStep step_of(int result, const char* what);
  IoStep failed(std::string reason);

  const int socket_;
  tls::Connection tls_;
  uint64_t plain_bytes_received_ = 0;
  std::string failure_;
};

}  // namespace gpuwire::server
