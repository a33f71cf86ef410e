// Which idle sessions give a GPU's memory back when somebody needs it: a pure function of what is known of each.
//
// A victim is idle, allowed to be suspended by its tenant, of no higher class than the asker, and of a tenant that
// holds more than it is guaranteed, unless the asker's tenant itself stays within its guarantee or is the victim's own.
// A session that came back keeps its memory for kKeptPerReturn times as long as its return took. The fewest victims
// that give enough are chosen, and none where all together do not; among those, the lowest class first, then the
// session whose return is cheap for how long it has been idle (the chance of a call in the next moment falls with the
// idle time, so cost / idle is what the choice is expected to lose), then the one that gives least beyond what is
// asked.
#pragma once

#include <map>
#include <optional>
#include <span>
#include <vector>

#include "scheduler/types.hpp"

namespace gpuwire::scheduler {

inline constexpr unsigned kKeptPerReturn = 10;
// Suspensions for one request: each takes its time, and the request waits for all of them.
inline constexpr size_t kVictimsMax = 8;

// A tenant's setting. pressure: when another needs the memory; idle: as soon as it has been idle for long enough, too.
enum class Suspend : uint8_t { never, pressure, idle };
const char* name_of(Suspend when);

// A session that holds memory of the device in question.
struct SuspendableSession {
  SessionId session{};
  TenantId tenant{};
  ServiceClass service_class = ServiceClass::batch;
  Suspend when = Suspend::never;
  uint64_t bytes = 0;               // given back on the device
  uint64_t host_bytes = 0;          // what its contents take of the host's memory, over all devices
  std::optional<Duration> idle;     // nothing is in flight and no call has come since; without it: busy
  Duration suspend_after{};         // idle for less: not a victim
  Duration return_cost{};           // how long coming back is expected to take
  std::optional<Duration> on_card;  // since it came back; without it: it was never suspended
  Duration last_return{};           // how long its last return took
};

struct SuspensionTenant {
  uint64_t held_bytes = 0;        // of the device, by all its sessions
  uint64_t guaranteed_bytes = 0;  // of the device
  uint64_t host_room_bytes = 0;   // what its suspended sessions may take in addition of the host's memory
};

struct SuspensionRequest {
  std::optional<SessionId> session;  // that asks; without it: one that has not begun
  TenantId tenant{};
  ServiceClass service_class = ServiceClass::batch;
  uint64_t bytes = 0;  // beyond what is free
};

// What is known when the request is made.
struct SuspensionView {
  std::span<const SuspendableSession> sessions;
  const std::map<TenantId, SuspensionTenant>& tenants;  // one that is missing holds nothing and has no room
  uint64_t host_room_bytes = 0;                         // for contents of suspended sessions of all tenants together
};

// Why a session is no victim; stable names for figures.
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

// For a first victim.
NoVictim why_no_victim(const SuspendableSession& session, const SuspensionRequest& request, const SuspensionView& view);

// In the order in which they are to be suspended; empty: suspending does not help.
std::vector<SessionId> choose_victims(const SuspensionRequest& request, const SuspensionView& view);

// Whether a session of Suspend::idle is suspended now although nobody asks. `tenant` and `host_room_bytes` as above.
NoVictim why_not_by_idleness(const SuspendableSession& session, const SuspensionTenant& tenant,
                             uint64_t host_room_bytes);

}  // namespace gpuwire::scheduler
