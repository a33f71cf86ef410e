// Bounds of the web page's process. What the broker keeps of it is bounded in ../control/web/limits.hpp.
#pragma once

#include <chrono>
#include <cstddef>
#include <cstdint>

namespace gpuwire::server::web {

inline constexpr size_t kConnectionsMax = 256;          // one more pushes out the oldest that carries no stream
inline constexpr size_t kStreamsMax = 128;              // of live updates, among them
inline constexpr size_t kStreamsPerSignInMax = 4;       // as many windows of one visitor
inline constexpr uint32_t kRequestHeadBytesMax = 8192;  // the first line and the headers
inline constexpr uint64_t kFormBytesMax = 4096;
// Of what is passed on to the server, whose lines are bounded, too: as JSON each byte may be six.
inline constexpr size_t kSecretBytesMax = 256, kTicketBytesMax = 128;
inline constexpr size_t kFieldsMax = 16;                 // of a form, of a query, and cookies
inline constexpr std::chrono::seconds kRequestTime{10};  // for a request to arrive and an answer to be taken
inline constexpr std::chrono::seconds kIdleTime{30};     // of a connection between two requests
inline constexpr std::chrono::milliseconds kLiveInterval{2000}, kFirstInterval{500};
inline constexpr std::chrono::seconds kEarlierTime{10};  // an earlier snapshot that is older makes no rate of now
inline constexpr std::chrono::seconds kStreamSignOfLife{15};
inline constexpr size_t kAskedMax = 256;  // questions to the server that wait for their turn
inline constexpr size_t kAnswerBytesMax = 64u << 20;
inline constexpr size_t kRowsMax = 500;  // of a table
inline constexpr std::chrono::milliseconds kAcceptRetry{100};

// Sign-ins: so many at once of one address, and one more each time this has passed. One that succeeds costs nothing.
inline constexpr unsigned kAttemptsAtOnce = 20;
inline constexpr std::chrono::seconds kAttemptRefill{3};
inline constexpr size_t kAttemptAddressesMax = 1024;  // further addresses share one bucket

}  // namespace gpuwire::server::web
