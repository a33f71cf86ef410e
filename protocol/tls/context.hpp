// The contexts of a session's two handshakes (README.md). All use TLS 1.3, without tickets, early data or resumption.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <string>
#include <string_view>

#include <tl/expected.hpp>

#include "protocol/tls/credentials.hpp"
#include "protocol/tls/openssl.hpp"

namespace gpuwire::tls {

// The key that the first handshake exports for the second: only the two ends know it.
inline constexpr size_t kSessionKeyBytes = 32;
inline constexpr std::string_view kExporterLabel = "EXPORTER-gpuwire-session";
// The label of the bytes that bind the proof of a session to the connection that is to resume it.
inline constexpr std::string_view kBindingLabel = "EXPORTER-gpuwire-resume";
using SessionKey = std::array<uint8_t, kSessionKeyBytes>;

// Returns the client's context of the first handshake. The client sends credentials.certificate if there is one, and
// accepts only servers whose certificate credentials.authorities have signed. The host is set for each connection. The
// error is one line.
tl::expected<Context, std::string> client_context(const Credentials& credentials);
// Applies the server's settings for the first handshake to a context, whose owner adds certificate, key and
// authorities. A client may send a certificate but need not.
bool restrict_server(SSL_CTX* context);
// Exports the key after the first handshake, on both sides.
tl::expected<SessionKey, std::string> exported_key(SSL* connection, std::string_view label = kExporterLabel);

// Returns the client's context of the second handshake, in which each side proves that it has the key, without
// certificates. Returns null if memory is short.
Context key_client_context(const SessionKey& key);
Context key_server_context(const SessionKey& key);
bool has_key(const Context& context);

}  // namespace gpuwire::tls
