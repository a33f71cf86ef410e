// Bounds of the login process.
#pragma once

#include <cstddef>
#include <cstdint>

namespace gpuwire::server {

// Connections without authentication; beyond this number, one is dropped.
inline constexpr size_t kAuthConnectionsMax = 1024;
// The same for one address.
inline constexpr size_t kAuthConnectionsPerAddressMax = 128;
// Connections whose tenant is known and that wait for the broker's answer.
inline constexpr size_t kLoggedInMax = 16'384;
// The bytes that a client may send inside TLS before its session.
inline constexpr size_t kHandshakeBytesMax = 64u << 10;
// The time for a client to read an answer.
inline constexpr uint32_t kAnswerWriteMs = 5000;
// The time for a refused client to read the reason.
inline constexpr uint32_t kLoginRefusalLingerMs = 1000;
// The bytes of a refused client's input that are discarded meanwhile.
inline constexpr size_t kLingerBytesMax = 64u << 10;
// The bytes of answers that a client has not read; further places in the queue are not sent.
inline constexpr size_t kUnsentBytesMax = 4096;
// The bytes of each text of a login frame.
inline constexpr size_t kLoginTextBytesMax = 256;
// Messages that the broker has not read; further refusals are only counted.
inline constexpr size_t kAuditBacklogMax = 256;

}  // namespace gpuwire::server
