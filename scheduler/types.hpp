// The scheduler's common types: tenants, sessions, classes, time. They depend on neither CUDA, a clock nor a socket.
#pragma once

#include <chrono>
#include <cstdint>

namespace gpuwire::scheduler {

// Strict priority, highest first.
enum class ServiceClass : uint8_t { realtime, interactive, batch, scavenger };
inline constexpr unsigned kServiceClasses = 4;

enum class TenantId : uint32_t {};   // from the reader of the configuration; a name keeps its id over reloads
enum class SessionId : uint64_t {};  // from the broker, never used twice
using DeviceIndex = uint32_t;        // a GPU of this server, in its driver's order

using Duration = std::chrono::nanoseconds;
// Time since an epoch of the caller's choice, the same for all calls of one object; it never decreases there (the
// caller clamps).
using Time = std::chrono::nanoseconds;

// Returns a - b, or 0 if b is larger.
constexpr uint64_t difference(uint64_t a, uint64_t b) { return a > b ? a - b : 0; }

}  // namespace gpuwire::scheduler
