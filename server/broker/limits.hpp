// Bounds of the broker.
#pragma once

#include <cstddef>
#include <cstdint>

namespace gpuwire::server {

inline constexpr size_t kHalfOpenMax = 128;  // connections whose preface is still awaited, or that are being refused
inline constexpr size_t kHalfOpenPerAddressMax = 64;       // of these, from one address
inline constexpr size_t kQueryAnswerBytesMax = 512 << 10;  // what a tenant asks about its own
// Of a tenant's questions so many are answered at once, and one more in each of these spans.
inline constexpr unsigned kQueriesAtOnce = 40;
inline constexpr uint32_t kQueryRefillMs = 50;
inline constexpr size_t kLoginBacklogMax =
    256;  // messages that the login process has not taken; connections beyond are refused
inline constexpr uint32_t kLoginLivedMs = 1000;  // a login process that lived so long is started again at once
inline constexpr uint32_t kLoginExitMs = 1500;   // from the broker's end until it is killed
inline constexpr uint32_t kLoginAuditsPerSecondMax =
    50;  // refusals of one kind that are told one by one; more are counted
// Of one address so many refusals of each kind are told, and one more in each of these spans.
inline constexpr unsigned kLoginAuditsOfAddressAtOnce = 50;
inline constexpr uint32_t kLoginAuditsOfAddressRefillMs = 1000;
inline constexpr uint32_t kAcceptRetryMs = 100;     // after accept() failed
inline constexpr uint32_t kRefusalLingerMs = 1000;  // for a refused client to read why
inline constexpr uint32_t kWorkerStartMs = 60'000;  // a driver with many devices takes seconds to initialise
inline constexpr uint32_t kWorkerWaitMs = 20'000;   // how long an accepted client waits while no worker becomes ready
inline constexpr uint32_t kWorkerNotifyMs = 5000;   // after which it is told so; it gives up after 20 s without a word
inline constexpr uint32_t kWorkerWaitMostMs = 300'000;  // and in all
inline constexpr uint32_t kSessionBeginMs =
    30'000;  // from a session's grant until its client has begun it: more than the limits of the steps between
inline constexpr unsigned kWorkersLostMax =
    2;  // workers of a granted session that die before they have its client, and are replaced
inline constexpr uint32_t kWorkerExitMs = 1500;         // from a worker's last message, or a stop, until it is killed
inline constexpr size_t kWorkerLastMessagesMax = 1024;  // read after its death
inline constexpr unsigned kWorkerNotesMax = 256;        // of its notes that are logged; the others are counted
inline constexpr uint32_t kKeeperLockMs = 500;          // for a broker that was killed to let go of the folder
inline constexpr uint32_t kKeeperAnswerMs =
    5000;  // for the keeper's next message, at the start, and for the last ones to it
inline constexpr unsigned kKeeperTriesMax = 3;  // to learn what the keeper of an earlier broker has
// Sessions of an earlier broker whose GPU is not there: so long nobody is let in, and the devices are asked for again.
inline constexpr uint32_t kGpuReturnMs = 30'000, kGpuAskMs = 1000;
inline constexpr unsigned kStartAttemptsMax = 4;  // failed starts in a row before clients are refused
inline constexpr uint32_t kRestartDelayMinMs = 100, kRestartDelayMaxMs = 5000;
// Programs that wait for a GPU or a place, of all tenants: each has a connection of the login process, and a record.
inline constexpr unsigned kQueuedMax = 1024;
inline constexpr uint32_t kQueuePollMs =
    500;  // while somebody waits: how often it is looked whether running sessions have freed memory
inline constexpr uint32_t kQueueReturnMs =
    30'000;  // for clients that waited under an earlier broker to come back to their places
inline constexpr unsigned kPrewarmedWorkersMax = 64;
// Spares that are kept because sessions come often, beside the least: so many of a GPU unless the command line says
// otherwise, and of all pools together.
inline constexpr unsigned kPrewarmedWorkersMostUsual = 8, kExtraPrewarmedMax = 32;
// PrewarmedDemand's: what came within so many starts is asked for, and kept for so many starts, though no longer than
// this.
inline constexpr unsigned kPrewarmedWindowStarts = 2, kPrewarmedHoldStarts = 32;
inline constexpr uint32_t kPrewarmedHoldMaxMs = 30'000;
inline constexpr uint32_t kPrewarmedStartMinMs = 1;
// How long no spare is started in the place of those whose memory a tenant has asked for.
inline constexpr uint32_t kPrewarmedRestMs = 10'000;
// Workers of all pools together that are on their way at once; a start that takes longer than kStartHoldMs is not
// counted, so that a device that hangs holds up nobody else. Beside them there is one attempt of each pool whose starts
// have failed.
inline constexpr size_t kParallelStartsMax = 8;
inline constexpr uint32_t kStartHoldMs = 5000;
// Of these places spares leave so many to sessions that come while they start.
inline constexpr size_t kStartsForSessions = 1;
// Lanes of all sessions of a tenant, each with two descriptors and a thread of a worker; as many again may be under way
// to take the place of those. With the default of four, sixteen sessions have them.
inline constexpr unsigned kLanesPerTenantMax = 64;
// How many of them a session may have where the configuration names no number. Inside TLS each encrypts on a core of
// its own, and more are faster for longer (docs/performance.md).
inline constexpr unsigned kLanesUsual = 4, kLanesUsualTls = 8;
// Lost connections of a session, and resumptions that it has refused, that are told one by one to the audit: so many at
// once of either kind, and one more in each of these spans. The others stand as a number in the line of its end.
inline constexpr unsigned kSessionEventsAtOnce = 64;
inline constexpr uint32_t kSessionEventRefillMs = 10'000;
// Descriptors that a worker was sent and has not read, which the kernel or the broker keeps meanwhile: connections of
// its session, and what it has asked others to share. More than two sets of lanes and an attempt for each.
inline constexpr size_t kUnreadPerWorkerMax = 128, kUnreadPerTenantMax = 512;
// Causes of ended sessions, for clients that come back to them.
inline constexpr size_t kEndedPerTenantMax = 64, kEndedMax = 1024, kEndedCauseBytesMax = 256;
// Descriptors kept for sessions to share, where the process may have enough of them (share_limits).
inline constexpr size_t kSharesPerSessionMax = 1024, kSharesPerTenantMax = 4096, kSharesMax = 8192;
// Descriptors that shares leave to everything else: connections that arrive, the control socket, files, pairs of
// processes that start.
inline constexpr size_t kDescriptorsReserved = 256;
// Its worker's pair, its output, two of its process and one of its figures, its pages; and copies of four of these for
// a keeper that dies.
inline constexpr size_t kDescriptorsPerSession = 12;
inline constexpr size_t kSpareDescriptors = 8;  // for refusing in words when there are no others

}  // namespace gpuwire::server
