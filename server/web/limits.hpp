// Bounds of the web page's process. ../control/web/limits.hpp has those of the broker's side.
#pragma once

#include <chrono>
#include <cstddef>
#include <cstdint>

namespace gpuwire::server::web {

inline constexpr size_t kConnectionsMax = 256;          // one more closes the oldest without a stream
inline constexpr size_t kStreamsMax = 128;              // of live updates, among them
inline constexpr size_t kStreamsPerSignInMax = 4;       // windows of one visitor
inline constexpr uint32_t kRequestHeadBytesMax = 8192;  // the first line and the headers
inline constexpr uint64_t kFormBytesMax = 4096;
// Secrets and tickets go to the server, whose lines are bounded, too: in JSON each byte may take six.
inline constexpr size_t kSecretBytesMax = 256, kTicketBytesMax = 128;
inline constexpr size_t kFieldsMax = 16;                 // of a form, of a query, and cookies
inline constexpr std::chrono::seconds kRequestTime{10};  // for a request to arrive and its answer to be read
inline constexpr std::chrono::seconds kIdleTime{30};     // between two requests of a connection
inline constexpr std::chrono::milliseconds kLiveInterval{2000}, kFirstInterval{500};
// An earlier snapshot of this age is too old for a present rate.
inline constexpr std::chrono::seconds kEarlierTime{10};
inline constexpr std::chrono::seconds kStreamSignOfLife{15};
inline constexpr size_t kAskedMax = 256;  // requests to the server that wait for their turn
inline constexpr size_t kAnswerBytesMax = 64u << 20;
inline constexpr size_t kRowsMax = 500;  // of a table
inline constexpr std::chrono::milliseconds kAcceptRetry{100};

// TLS: connections before the end of their handshake; one more closes the oldest of its address, if that has its share,
// or of the address that has most.
inline constexpr size_t kHandshakesMax = 128, kHandshakesPerAddressMax = 32;
inline constexpr size_t kHandshakeBytesMax = 64u << 10;  // of a visitor
inline constexpr std::chrono::seconds kHandshakeTime{10};
// Connections behind their handshake: those of the page, and those that the page has closed and the visitor has not.
inline constexpr size_t kRelaysMax = kConnectionsMax + 64;
inline constexpr std::chrono::seconds kRelayWriteTime{10};  // for a visitor to take a piece
inline constexpr size_t kRelayPieceBytes = 16u << 10;
inline constexpr std::chrono::seconds kRelayCloseTime{5};  // for a visitor to close what the page has closed
inline constexpr size_t kArrivalBytesMax = 4096;           // of the words that come with a connection
inline constexpr size_t kShownTextBytesMax = 256;          // of a text of a certificate

// Sign-in attempts of one address: the burst, and the time for one more. A successful attempt is free. Certificates
// that do not count are attempts, too.
inline constexpr unsigned kAttemptsAtOnce = 20;
inline constexpr std::chrono::seconds kAttemptRefill{3};
inline constexpr size_t kAttemptAddressesMax = 1024;  // further addresses share one bucket

}  // namespace gpuwire::server::web
