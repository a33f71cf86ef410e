// Bounds of what the broker keeps and does for the web page.
#pragma once

#include <chrono>
#include <cstddef>
#include <cstdint>

namespace gpuwire::server {

inline constexpr size_t kWebSignInsMax = 512;          // at once; the one that was used longest ago goes
inline constexpr size_t kWebSignInsPerTenantMax = 16;  // of a tenant, and of administrators
inline constexpr std::chrono::hours kWebSignInIdle{2}, kWebSignInWhole{12};
inline constexpr size_t kWebCodesMax = 8;  // one-time codes that nobody has used; the oldest goes
inline constexpr std::chrono::minutes kWebCodeTime{10};
inline constexpr size_t kWebSecretBytesMax = 256;
inline constexpr size_t kWebRequestBytesMax = 4096;  // one line from gpuwire-web
// Views within it are of the same figures, so that many readers cost the broker one look at its sessions.
inline constexpr std::chrono::milliseconds kWebFreshTime{400};
inline constexpr std::chrono::seconds kWebHistoryFreshTime{30};

}  // namespace gpuwire::server
