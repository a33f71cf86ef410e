// Chooses the idle sessions that release a GPU's memory when another session needs it: a pure function of each
// session's state.
//
// A victim is idle, may be suspended by its tenant's setting, and is of no higher class than the asker. Its tenant
// holds more than its guarantee, unless the asker's tenant stays within its own guarantee or is the victim's. A session
// that returned keeps its memory for kKeptPerReturn times the duration of its return. The fewest victims that free
// enough are chosen, and none if all together do not. Among them the lowest class comes first, then the session with
// the lowest return cost per idle time (the chance of a call in the next moment falls with the idle time, so cost /
// idle is the expected loss), then the one that frees least beyond the request.
#pragma once

#include <map>
#include <optional>
#include <span>
#include <vector>

#include "scheduler/types.hpp"

namespace gpuwire::scheduler {

inline constexpr unsigned kKeptPerReturn = 10;
// The bound of suspensions for one request, which waits for all of them.
inline constexpr size_t kVictimsMax = 8;

// A tenant's setting. pressure: if another session needs the memory; idle: also once the session has been idle for long
// enough.
enum class Suspend : uint8_t { never, pressure, idle };
const char* name_of(Suspend when);

// A session that holds memory of the device in question.
struct SuspendableSession {
  SessionId session{};
  TenantId tenant{};
  ServiceClass service_class = ServiceClass::batch;
  Suspend when = Suspend::never;
  // Freed on the device.
  uint64_t bytes = 0;
  // Host memory for its contents, over all devices.
  uint64_t host_bytes = 0;
  // Time without work in flight and without a call; nothing: busy.
  std::optional<Duration> idle;
  // Less idle time: no victim.
  Duration suspend_after{};
  // The expected duration of its return.
  Duration return_cost{};
  // Since its return; nothing: it was never suspended.
  std::optional<Duration> on_card;
  // The duration of its last return.
  Duration last_return{};
};

struct SuspensionTenant {
  // The device's memory that all sessions of the tenant hold.
  uint64_t held_bytes = 0;
  // The device's memory that the tenant is guaranteed.
  uint64_t guaranteed_bytes = 0;
  // Further host memory that its suspended sessions may take.
  uint64_t host_room_bytes = 0;
};

struct SuspensionRequest {
  // The asker; nothing: a session that has not begun.
  std::optional<SessionId> session;
  TenantId tenant{};
  ServiceClass service_class = ServiceClass::batch;
  // Beyond what is free.
  uint64_t bytes = 0;
};

// The state at the time of the request.
struct SuspensionView {
  std::span<const SuspendableSession> sessions;
  // A missing tenant holds nothing and has no room.
  const std::map<TenantId, SuspensionTenant>& tenants;
  // For contents of suspended sessions of all tenants together.
  uint64_t host_room_bytes = 0;
};

// Why a session is no victim; the names are stable, for metrics.
enum class NoVictim : uint8_t {
  none,  // it is one
  asks_itself,
  not_allowed,  // its tenant's setting
  holds_nothing,
  higher_class,
  busy,
  idle_too_short,
  just_returned,
  within_guarantee,
  host_memory_full,
};
const char* name_of(NoVictim why);

// Returns why the session cannot be a first victim.
NoVictim why_no_victim(const SuspendableSession& session, const SuspensionRequest& request, const SuspensionView& view);

// Returns the victims in the order of suspension; empty: suspension does not help.
std::vector<SessionId> choose_victims(const SuspensionRequest& request, const SuspensionView& view);

// Returns why a session with Suspend::idle is not suspended now without a request; none: it is. `tenant` and
// `host_room_bytes` as above.
NoVictim why_not_by_idleness(const SuspendableSession& session, const SuspensionTenant& tenant,
                             uint64_t host_room_bytes);

}  // namespace gpuwire::scheduler
