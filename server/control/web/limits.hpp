// Bounds of the broker's side of the web page.
#pragma once

#include <chrono>
#include <cstddef>
#include <cstdint>

namespace gpuwire::server {

inline constexpr size_t kWebSignInsMax = 512;          // at once; one more ends the least recently used
inline constexpr size_t kWebSignInsPerTenantMax = 16;  // of a tenant, and of administrators
inline constexpr std::chrono::hours kWebSignInIdle{2}, kWebSignInWhole{12};
inline constexpr size_t kWebCodesMax = 8;  // unused one-time codes; one more removes the oldest
inline constexpr std::chrono::minutes kWebCodeTime{10};
inline constexpr size_t kWebSecretBytesMax = 256;
// Connections whose certificate counts; one more ends the grant that was not used for longest.
inline constexpr size_t kWebGrantsMax = 1024;
inline constexpr size_t kWebGrantsPerTenantMax = 128;
inline constexpr size_t kWebRequestBytesMax = 4096;  // one line from gpuwire-web
// Views within this time show the same snapshot, so that many readers cost the broker one pass over its sessions.
inline constexpr std::chrono::milliseconds kWebFreshTime{400};
inline constexpr std::chrono::seconds kWebHistoryFreshTime{30};
inline constexpr size_t kWebEndedMax = 100;  // ended sessions in a view
// Reasons for which sessions were not suspended or resumed: how long a visitor sees each, and of how many sessions at
// once.
inline constexpr std::chrono::minutes kWebMoveFailureTime{1};
inline constexpr size_t kWebMoveFailuresMax = 64;

}  // namespace gpuwire::server
