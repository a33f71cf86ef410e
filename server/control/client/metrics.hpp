// A server's metrics for administrators and users: plain values, collected by the broker, carried as JSON.
//
// Times, bytes and counts "since" a start only grow; a reader computes a rate from two snapshots. A value that is not
// measured is zero.
#pragma once

#include <cstdint>
#include <map>
#include <optional>
#include <string>
#include <vector>

namespace gpuwire::server {

// counts[i]: observations <= bounds[i] and above bounds[i - 1]; the last count, one more than bounds, has those above
// all bounds.
struct HistogramMetrics {
  std::vector<double> bounds;
  std::vector<uint64_t> counts;
  double sum = 0;
  bool operator==(const HistogramMetrics&) const = default;

  void observe(double value);
  // Adds the counts of a histogram with the same bounds; ignores one with other bounds.
  void add(const HistogramMetrics& other);
  uint64_t total() const;
};

// An expiry date: of the authority, of the server's certificate, or of a tenant's credential.
struct CertificateMetrics {
  std::string of;      // authority, server, tenant
  std::string tenant;  // of a tenant's: the tenant
  double expires_unix_s = 0;
  std::string warning;    // one line, if the date is near or past; else empty
  std::string user = {};  // of a tenant's: the tenant's user; empty: no particular one
  std::string kind = {};  // of a tenant's: certificate or token
  std::string id = {};    // of a tenant's: a certificate's serial, a token's id
  bool renewed = false;   // its owner has another one of this kind that expires later
  bool operator==(const CertificateMetrics&) const = default;
};

struct ServerMetrics {
  std::string release;
  int64_t pid = 0;
  double started_unix_s = 0;
  // The start of counted GPU time: that of the first server whose totals continue here.
  double counted_since_unix_s = 0;
  std::string devices;  // as in the server's first line: "1 x NVIDIA H200, NVIDIA 580.159.04, CUDA 13.0"
  std::vector<std::string> listen;
  uint64_t sessions_max = 0;
  bool draining = false;           // accepts no new sessions
  uint64_t sessions_left_out = 0;  // of Snapshot::sessions
  uint64_t audit_lines_lost = 0;
  std::vector<CertificateMetrics> certificates;
  uint64_t certificates_left_out = 0;  // of `certificates`: those that expire last
  bool operator==(const ServerMetrics&) const = default;
};

// The scheduler's latest measurement of turns against side by side: the sum over sessions of each one's rate, relative
// to its rate without any other session.
struct SideBySideMetrics {
  uint64_t trials = 0;  // trials of side by side
  double turns = 0;
  double together = 0;  // measured while all of them ran
  double expected = 0;  // with the time that sessions with a debt owed to them get alone
  bool operator==(const SideBySideMetrics&) const = default;
};

struct DeviceMetrics {
  uint32_t index = 0;
  std::string name;
  uint64_t memory_bytes = 0;            // the ledger's bound for all sessions; 0: there is no ledger
  uint64_t memory_used_bytes = 0;       // by all tenants
  uint64_t memory_reserved_bytes = 0;   // for sessions, used by them or not
  uint64_t memory_held_bytes = 0;       // used, or reserved and not used yet: not available to others
  uint64_t prewarmed_workers = 0;       // with their context here, starting ones included
  uint64_t prewarmed_memory_bytes = 0;  // of these contexts
  uint64_t sessions = 0;
  std::string drain;                          // draining, drained; empty: it is not drained
  std::string regime;                         // free, co-run, lease
  std::map<std::string, uint64_t> regime_ns;  // since the start, by regime
  uint64_t gpu_time_ns = 0;                   // charged to tenants since the start
  uint64_t system_time_ns = 0;                // switches and idle leases, which no tenant is charged for
  uint64_t hand_overs = 0;                    // of the lease, from one session to another
  SideBySideMetrics side_by_side;
  std::map<std::string, HistogramMetrics>
      drain_us;  // from a gate's closing to the observed end of the last work, by the class of its session
  bool operator==(const DeviceMetrics&) const = default;
};

struct TenantDeviceMetrics {
  uint32_t device = 0;
  uint64_t gpu_time_ns = 0;  // charged since the server's start
  uint64_t granted_ns = 0;   // its turns, used or not, while other tenants of its class wanted the device
  uint64_t memory_used_bytes = 0;
  uint64_t memory_reserved_bytes = 0, memory_held_bytes = 0;  // as in DeviceMetrics
  uint64_t memory_limit_bytes = 0;                            // 0: the whole device
  uint64_t memory_guaranteed_bytes = 0;
  uint64_t memory_allowance_bytes = 0;
  bool operator==(const TenantDeviceMetrics&) const = default;
};

// One user of a tenant, in this calendar month.
struct UserMetrics {
  std::string name;
  uint64_t sessions = 0;      // now, waiting ones included
  uint64_t sessions_max = 0;  // 0: no bound
  uint64_t budget_ns = 0;     // of GPU time in a month; 0: none
  uint64_t budget_used_ns = 0;
  bool budget_hard = false;
  uint64_t memory_used_bytes = 0;   // on the GPU where the user's sessions use most memory
  uint64_t memory_limit_bytes = 0;  // on each GPU; 0: no bound but the tenant's
  bool operator==(const UserMetrics&) const = default;
};

struct TenantMetrics {
  std::string name;
  std::string service_class;
  double weight = 1;
  uint64_t sessions_max = 0;    // 0: no bound
  uint64_t budget_ns = 0;       // of GPU time in a calendar month (UTC); 0: none
  uint64_t budget_used_ns = 0;  // in this month, if anybody has a budget
  bool budget_hard = false;
  std::vector<UserMetrics> users;            // by name; of very many users those that have used most
  std::map<std::string, uint64_t> sessions;  // now, by state
  std::vector<TenantDeviceMetrics> devices;
  uint64_t host_memory_used_bytes = 0, host_memory_limit_bytes = 0;  // of the server's own memory
  uint64_t chunk_memory_bytes = 0, chunk_memory_limit_bytes = 0;     // the part of its chunk store in memory
  uint64_t chunk_disk_bytes = 0, chunk_disk_limit_bytes = 0;         // and the part on disk
  uint64_t chunks_found = 0, chunk_bytes_found = 0;  // of copies to the device that its clients did not have to send
  uint64_t chunk_bytes_kept = 0;                     // written to the store
  uint64_t bytes_in = 0, bytes_out = 0;              // ended sessions included
  uint64_t replies = 0;                              // the number of times that a program has waited for a reply
  uint64_t begun = 0;                                // begun sessions, since the start
  uint64_t worker_waits = 0;                         // sessions for which no worker was ready when they got their GPUs
  std::map<std::string, uint64_t> ended;             // by cause
  std::map<std::string, uint64_t> refused;           // logins, by reason
  HistogramMetrics queue_wait_s;                     // of admitted sessions
  bool operator==(const TenantMetrics&) const = default;
};

struct SessionDeviceMetrics {
  uint32_t device = 0;
  uint64_t memory_used_bytes = 0;
  uint64_t memory_peak_bytes = 0;
  uint64_t memory_reserved_bytes = 0;
  bool operator==(const SessionDeviceMetrics&) const = default;
};

struct SessionMetrics {
  uint64_t id = 0;
  std::string tenant;
  std::string user;  // of the tenant; empty: no particular one
  std::string service_class;
  std::string state;       // queued, starting, granted, running, suspending, suspended, resuming, detached, ending
  std::string suspension;  // suspending, suspended, resuming; empty: it is none of these. Also while it is detached
  uint64_t suspended_bytes = 0;       // of its device memory with the host
  double suspended_since_unix_s = 0;  // 0: it is not suspended
  double detached_left_s = 0;         // if detached: until it ends unless its client reconnects; else 0
  std::string peer, program, host, security;
  std::string credential;  // a certificate's serial or a token's number
  int64_t client_pid = 0, worker_pid = 0;
  double since_unix_s = 0;  // since it began or was queued
  uint64_t place = 0;       // in the queue, from 1; 0: not queued
  std::string waits_for;
  std::optional<double> start_in_s;  // if queued: the expected time until its start; nothing: unknown
  std::vector<SessionDeviceMetrics> devices;
  uint64_t memory_limit_bytes = 0;  // on each; 0: the whole device
  uint64_t gpu_time_ns = 0;         // since it began
  bool gate_open = true;
  bool holds_lease = false;
  uint64_t leases = 0;  // leases granted since it began
  std::string held;  // why the gate holds its next work: turn, class, drain, gang, no-show, sibling; empty: it does not
  uint64_t held_by = 0;       // the session that it waits for; 0: no particular one
  uint64_t in_flight_ns = 0;  // estimated GPU time of submitted, unfinished work
  uint64_t gate_waits = 0, gate_wait_ns = 0;
  uint64_t bytes_in = 0, bytes_out = 0;
  uint64_t chunks_found = 0, chunk_bytes_found = 0, chunk_bytes_kept = 0;  // as in TenantMetrics
  uint64_t replies = 0;        // the number of times that the program has waited for a reply
  uint32_t round_trip_us = 0;  // 0: unknown
  std::string warning;         // about a runaway session
  bool operator==(const SessionMetrics&) const = default;
};

inline constexpr size_t kSessionsShownMax = 4096, kCertificatesShownMax = 512;

struct Snapshot {
  uint64_t taken_ns = 0;  // on a monotonic clock of the server's host
  double taken_unix_s = 0;
  ServerMetrics server;
  std::vector<DeviceMetrics> devices;       // by index
  std::vector<TenantMetrics> tenants;       // by name
  std::vector<SessionMetrics> sessions;     // by id
  std::map<std::string, uint64_t> refused;  // callers without a known tenant, by reason
  bool operator==(const Snapshot&) const = default;
};

}  // namespace gpuwire::server
