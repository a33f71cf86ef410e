// The optional steps of every exported call (entry.hpp).
#pragma once

#include <atomic>
#include <cstdint>

namespace gpuwire::client {

// Bits. Relaxed: nothing else is published through them. kObserved: set once at start from GPUWIRE_TRACE, GPUWIRE_STATS
// and GPUWIRE_PROFILE_FILE, before the first call returns. kManaged: the process has managed memory; a thread that can
// name managed memory got it after the bit was set.
inline constexpr uint8_t kObserved = 1, kManaged = 2;
inline constinit std::atomic<uint8_t> g_entry{0};

}  // namespace gpuwire::client
