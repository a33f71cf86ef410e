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

// The key that the first handshake leaves to the second: known to both ends and to nobody between them.
inline constexpr size_t kSessionKeyBytes = 32;
inline constexpr std::string_view kExporterLabel = "EXPORTER-gpuwire-session";
// Binds the proof of a session to the connection that is to resume it.
inline constexpr std::string_view kBindingLabel = "EXPORTER-gpuwire-resume";
using SessionKey = std::array<uint8_t, kSessionKeyBytes>;

// The first handshake, client: shows credentials.certificate if there is one and takes only servers that
// credentials.authorities have signed. Which host it is for is said with each connection. Error: one line.
tl::expected<Context, std::string> client_context(const Credentials& credentials);
// The first handshake, server: the settings that both sides rely on, for a context that its owner gives certificate,
// key and authorities. A client may show a certificate and need not.
bool restrict_server(SSL_CTX* context);
// After the first handshake, on both sides.
tl::expected<SessionKey, std::string> exported_key(SSL* connection, std::string_view label = kExporterLabel);

// The second handshake: each side proves that it has the key, no certificate is looked at. Null: out of memory.
Context key_client_context(const SessionKey& key);
Context key_server_context(const SessionKey& key);
bool has_key(const Context& context);

}  // namespace gpuwire::tls
