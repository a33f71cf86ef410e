// Bounds of the login process.
#pragma once

#include <cstddef>
#include <cstdint>

namespace gpuwire::server {

inline constexpr size_t kAuthConnectionsMax = 1024;  // connections without authentication; beyond them, one is dropped
inline constexpr size_t kAuthConnectionsPerAddressMax = 128;  // of these, from one address
inline constexpr size_t kLoggedInMax =
    16'384;  // connections whose tenant is known and that wait for the broker's answer
inline constexpr size_t kHandshakeBytesMax = 64u << 10;  // that a client may send inside TLS before its session
inline constexpr uint32_t kAnswerWriteMs = 5000;         // for a client to read an answer
inline constexpr uint32_t kLoginRefusalLingerMs = 1000;  // for a refused client to read the reason
inline constexpr size_t kLingerBytesMax = 64u << 10;     // of its input that are discarded meanwhile
inline constexpr size_t kUnsentBytesMax =
    4096;  // of answers that a client has not read; further places in the queue are not sent
inline constexpr size_t kLoginTextBytesMax = 256;  // of each text of a login frame
inline constexpr size_t kAuditBacklogMax = 256;    // messages unread by the broker; further refusals are only counted

}  // namespace gpuwire::server
