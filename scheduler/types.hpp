// What the scheduler's parts speak about: tenants, sessions, classes, time and bytes as arguments. Nothing here knows
// CUDA, a clock or a socket.
#pragma once

#include <chrono>
#include <cstdint>

namespace gpuwire::scheduler {

// Strict priority, highest first.
enum class ServiceClass : uint8_t { realtime, interactive, batch, scavenger };
inline constexpr unsigned kServiceClasses = 4;

enum class TenantId : uint32_t {};   // given by whoever reads the configuration; the same name keeps it over reloads
enum class SessionId : uint64_t {};  // given by the broker, never used twice
using DeviceIndex = uint32_t;        // a GPU of this server, counted as its driver counts

using Duration = std::chrono::nanoseconds;
// Since an epoch of the caller's choice, the same for all calls of one object; never goes back there (the caller
// clamps).
using Time = std::chrono::nanoseconds;

// a - b, and no less than none.
constexpr uint64_t difference(uint64_t a, uint64_t b) { return a > b ? a - b : 0; }

}  // namespace gpuwire::scheduler
