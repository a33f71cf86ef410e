// Bounds of the broker.
#pragma once

#include <cstddef>
#include <cstdint>

namespace gpuwire::server {

inline constexpr size_t kHalfOpenMax = 128;                // connections that wait for a preface or are being refused
inline constexpr size_t kHalfOpenPerAddressMax = 64;       // of these, from one address
inline constexpr size_t kQueryAnswerBytesMax = 512 << 10;  // the answer to a tenant's query
// A tenant's query budget: the burst, and the time for one more answer.
inline constexpr unsigned kQueriesAtOnce = 40;
inline constexpr uint32_t kQueryRefillMs = 50;
// Queries of a tenant that wait for moves of memory; and the interval at which their clients, which give up after 20 s
// without a message, are told that the answer follows.
inline constexpr size_t kQueriesWaitingPerTenantMax = 32;
inline constexpr uint32_t kQueryNotifyMs = 5000;
inline constexpr size_t kLoginBacklogMax =
    256;  // messages that the login process has not read; further connections are refused
inline constexpr uint32_t kLoginLivedMs = 1000;      // a login process that lived this long is restarted at once
inline constexpr uint32_t kSuspenderLivedMs = 1000;  // the same for gpuwire-suspender
inline constexpr size_t kMovesWaitingMax = 8;        // orders that its channel holds; it gets one at a time
inline constexpr uint32_t kQuiesceMs = 2000;         // for a worker to answer the request to rest
// For a worker to move its evictable blocks: 160 GiB through pageable memory, from a machine that has to free its own.
inline constexpr uint32_t kBlocksMoveMs = 180'000;
inline constexpr uint32_t kReturnPollMs = 50;  // while sessions wait for memory to return: the interval of attempts
// From a call to a suspended session until its client is told that it waits.
inline constexpr uint32_t kReturnNoticeMs = 1000;
// While sessions wait for memory, or tenants want idle sessions to be suspended: the interval of choices.
inline constexpr uint32_t kPressurePollMs = 200, kIdlePollMs = 1000;
// A session that could not be suspended is tried again after kVictimRetryMs, then kVictimDoublings times after twice as
// long; after kVictimQuickTries attempts every kVictimSlowMs.
inline constexpr uint32_t kVictimRetryMs = 50, kVictimSlowMs = 60'000;
inline constexpr unsigned kVictimDoublings = 5, kVictimQuickTries = 12;
// While GPUs are drained: the interval of polls for idle sessions. A session that was asked and not suspended is asked
// again after kDrainRetryMs, and kDrainDoublings times after twice as long.
inline constexpr uint32_t kDrainPollMs = 250, kDrainRetryMs = 250;
inline constexpr unsigned kDrainDoublings = 6;
inline constexpr size_t kDrainedMax = 1024;  // of the file, also those that the machine does not have now
// The expected duration of a session's first return: 40 GiB in 9 s, as measured with NVIDIA's driver.
inline constexpr uint32_t kReturnLeastMs = 200;
inline constexpr uint64_t kReturnBytesPerMs = 4'800'000;
inline constexpr uint64_t kIdleMsMax = uint64_t{365} * 24 * 3600 * 1000;  // a longer suspend_after counts as this
inline constexpr uint32_t kLoginExitMs = 1500;                            // from the broker's end until it is killed
inline constexpr uint32_t kLoginAuditsPerSecondMax =
    50;  // refusals of one kind that are audited one by one; more are counted
// Audited refusals of one kind from one address: the burst, and the time for one more.
inline constexpr unsigned kLoginAuditsOfAddressAtOnce = 50;
inline constexpr uint32_t kLoginAuditsOfAddressRefillMs = 1000;
inline constexpr uint32_t kAcceptRetryMs = 100;     // after accept() failed
inline constexpr uint32_t kRefusalLingerMs = 1000;  // for a refused client to read the reason
inline constexpr uint32_t kWorkerStartMs = 60'000;  // a driver with many devices takes seconds to initialise
inline constexpr uint32_t kWorkerWaitMs = 20'000;   // how long an accepted client waits while no worker becomes ready
// until its client is told that it waits; a client gives up after 20 s without a message
inline constexpr uint32_t kWorkerNotifyMs = 5000;
inline constexpr uint32_t kWorkerWaitMostMs = 300'000;  // the bound of the wait in all
inline constexpr uint32_t kSessionBeginMs =
    30'000;  // from a session's grant until its client has begun it: more than the limits of the steps between
inline constexpr unsigned kWorkersLostMax =
    2;  // workers of a granted session that die before they have its client, and are replaced
inline constexpr uint32_t kWorkerExitMs = 1500;         // from a worker's last message, or a stop, until it is killed
inline constexpr size_t kWorkerLastMessagesMax = 1024;  // read after its death
inline constexpr unsigned kWorkerNotesMax = 256;        // of its notes that are logged; the others are counted
inline constexpr uint32_t kKeeperLockMs = 500;          // until a killed broker's lock on the folder is released
inline constexpr uint32_t kKeeperAnswerMs =
    5000;  // for the keeper's next message, at the start, and to flush the last ones to it
inline constexpr unsigned kKeeperTriesMax = 3;  // to get the entries from the keeper of an earlier broker
// While the GPU of an adopted session is absent: how long no client is admitted, and the interval of new queries of the
// devices.
inline constexpr uint32_t kGpuReturnMs = 30'000, kGpuAskMs = 1000;
inline constexpr unsigned kStartAttemptsMax = 4;  // failed starts in a row before clients are refused
inline constexpr uint32_t kRestartDelayMinMs = 100, kRestartDelayMaxMs = 5000;
// Programs that wait for a GPU or a place, of all tenants: each has a connection of the login process, and a record.
inline constexpr unsigned kQueuedMax = 1024;
inline constexpr uint32_t kQueuePollMs =
    500;  // while sessions wait: the interval of checks whether running sessions have freed memory
inline constexpr uint32_t kQueueReturnMs =
    30'000;  // for clients that waited under an earlier broker to return to their places
inline constexpr unsigned kPrewarmedWorkersMax = 64;
// Prewarmed workers that are kept because sessions come often, beyond the minimum: for one GPU unless the command line
// gives a number, and of all pools together.
inline constexpr unsigned kPrewarmedWorkersMostUsual = 8, kExtraPrewarmedMax = 32;
// PrewarmedDemand's window of counted sessions, in starts; how long it holds a reached number, in starts; and the bound
// of that time.
inline constexpr unsigned kPrewarmedWindowStarts = 2, kPrewarmedHoldStarts = 32;
inline constexpr uint32_t kPrewarmedHoldMaxMs = 30'000;
inline constexpr uint32_t kPrewarmedStartMinMs = 1;
// How long no prewarmed worker replaces those that ended because a tenant asked for their memory.
inline constexpr uint32_t kPrewarmedRestMs = 10'000;
// Workers of all pools together that may start at once. A start that takes longer than kStartHoldMs is not counted, so
// that a device that hangs holds up no other start. Beside them each pool whose starts have failed may make one
// attempt.
inline constexpr size_t kParallelStartsMax = 8;
inline constexpr uint32_t kStartHoldMs = 5000;
// The part of kParallelStartsMax that prewarmed workers leave to sessions that come while they start.
inline constexpr size_t kStartsForSessions = 1;
// Lanes of all sessions of a tenant, each with two descriptors and a thread of a worker; as many again may be
// connecting to replace them. With the default of four, sixteen sessions have lanes.
inline constexpr unsigned kLanesPerTenantMax = 64;
// Lanes of a session where the configuration names no number. Inside TLS each lane encrypts on a core of its own, so
// the rate grows up to a higher number (docs/architecture.md).
inline constexpr unsigned kLanesUsual = 4, kLanesUsualTls = 8;
// Audited events of a session, for lost connections and for refused resumptions each: the burst, and the time for one
// more. The line of the session's end counts the others.
inline constexpr unsigned kSessionEventsAtOnce = 64;
inline constexpr uint32_t kSessionEventRefillMs = 10'000;
// Descriptors that were sent to a worker and that it has not read, which the kernel or the broker holds meanwhile:
// connections of its session, and shares of other sessions that it has claimed. More than two sets of lanes and an
// attempt for each.
inline constexpr size_t kUnreadPerWorkerMax = 128, kUnreadPerTenantMax = 512;
// Reasons of ended sessions, for clients that reconnect to them.
inline constexpr size_t kEndedPerTenantMax = 64, kEndedMax = 1024, kEndedCauseBytesMax = 256;
// Descriptors that sessions share, where the process may have enough of them (share_limits).
inline constexpr size_t kSharesPerSessionMax = 1024, kSharesPerTenantMax = 4096, kSharesMax = 8192;
// Descriptors that shares leave to all other uses: new connections, the control socket, files, socket pairs of starting
// processes.
inline constexpr size_t kDescriptorsReserved = 256;
// A session's worker: its pair, its output, two of its process and one of its figures, its pages; and copies of four of
// these for a restarted keeper.
inline constexpr size_t kDescriptorsPerSession = 12;
inline constexpr size_t kSpareDescriptors = 8;  // to refuse with a text when no others are left

}  // namespace gpuwire::server
