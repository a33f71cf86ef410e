// What a server tells administrators and users about itself: plain figures, gathered by the broker, carried as JSON.
//
// Times, bytes and counts named "since" their start only grow; whoever wants a rate takes two snapshots. A figure that
// nobody measures is zero.
#pragma once

#include <cstdint>
#include <map>
#include <optional>
#include <string>
#include <vector>

namespace gpuwire::server {

// counts[i]: observations <= bounds[i] and above the bound before; one more count than bounds for what lies above them
// all.
struct HistogramMetrics {
  std::vector<double> bounds;
  std::vector<uint64_t> counts;
  double sum = 0;
  bool operator==(const HistogramMetrics&) const = default;

  void observe(double value);
  // What another one with the same bounds has counted; one with others is left out.
  void add(const HistogramMetrics& other);
  uint64_t total() const;
};

// An end that a date sets: of the authority, of the server's certificate, of what a tenant shows.
struct CertificateMetrics {
  std::string of;      // authority, server, tenant
  std::string tenant;  // of a tenant: whose
  double expires_unix_s = 0;
  std::string warning;    // one line, when it is near or past; else empty
  std::string user = {};  // of a tenant's: which user of the tenant; empty: no particular user
  std::string kind = {};  // of a tenant's: certificate or token
  std::string id = {};    // of a tenant's: a certificate's serial, a token's id
  bool renewed = false;   // its owner has another of its kind that counts for longer
  bool operator==(const CertificateMetrics&) const = default;
};

struct ServerMetrics {
  std::string release;
  int64_t pid = 0;
  double started_unix_s = 0;
  double counted_since_unix_s = 0;  // since when GPU time counts: the start of the first server whose totals go on here
  std::string devices;              // as its first line says: "1 x NVIDIA H200, NVIDIA 580.159.04, CUDA 13.0"
  std::vector<std::string> listen;
  uint64_t sessions_max = 0;
  bool draining = false;           // accepts nobody any more
  uint64_t sessions_left_out = 0;  // of Snapshot::sessions
  uint64_t audit_lines_lost = 0;
  std::vector<CertificateMetrics> certificates;
  uint64_t certificates_left_out = 0;  // of `certificates`: those that end last
  bool operator==(const ServerMetrics&) const = default;
};

// Turns against side by side, as the scheduler has measured them last: sums over sessions, in parts of what each does
// while nobody holds it up.
struct SideBySideMetrics {
  uint64_t trials = 0;  // of side by side
  double turns = 0;
  double together = 0;  // while all of them ran
  double expected = 0;  // with the time that those who are owed something get alone
  bool operator==(const SideBySideMetrics&) const = default;
};

struct DeviceMetrics {
  uint32_t index = 0;
  std::string name;
  uint64_t memory_bytes = 0;           // what the ledger may give out; 0: there is no ledger
  uint64_t memory_used_bytes = 0;      // by all tenants
  uint64_t memory_reserved_bytes = 0;  // for sessions, used by them or not
  uint64_t memory_held_bytes = 0;      // used, or reserved and not used yet: what nobody else can have
  uint64_t spare_workers = 0;          // with their context here, those included that start
  uint64_t spare_memory_bytes = 0;     // of these contexts
  uint64_t sessions = 0;
  std::string regime;                         // free, co-run, lease
  std::map<std::string, uint64_t> regime_ns;  // since the start, by regime
  uint64_t gpu_time_ns = 0;                   // charged to tenants since the start
  uint64_t system_time_ns = 0;                // switches and idle leases that nobody is charged for
  uint64_t hand_overs = 0;                    // of the lease, from one session to another
  SideBySideMetrics side_by_side;
  std::map<std::string, HistogramMetrics>
      drain_us;  // from a gate's closing to the last work seen done, by the class of its session
  bool operator==(const DeviceMetrics&) const = default;
};

struct TenantDeviceMetrics {
  uint32_t device = 0;
  uint64_t gpu_time_ns = 0;  // charged since the server's start
  uint64_t granted_ns = 0;   // the turns that it was given while others of its class wanted the device, used or not
  uint64_t memory_used_bytes = 0;
  uint64_t memory_reserved_bytes = 0, memory_held_bytes = 0;  // as DeviceMetrics have them
  uint64_t memory_limit_bytes = 0;                            // 0: the whole device
  uint64_t memory_guaranteed_bytes = 0;
  uint64_t memory_allowance_bytes = 0;
  bool operator==(const TenantDeviceMetrics&) const = default;
};

// Of one user of a tenant, in this calendar month.
struct UserMetrics {
  std::string name;
  uint64_t sessions = 0;      // now, waiting ones included
  uint64_t sessions_max = 0;  // 0: no bound
  uint64_t budget_ns = 0;     // of GPU time in a month; 0: none
  uint64_t budget_used_ns = 0;
  bool budget_hard = false;
  uint64_t memory_used_bytes = 0;   // on the GPU where the user's sessions use most
  uint64_t memory_limit_bytes = 0;  // on each; 0: no bound but the tenant's
  bool operator==(const UserMetrics&) const = default;
};

struct TenantMetrics {
  std::string name;
  std::string service_class;
  double weight = 1;
  uint64_t sessions_max = 0;    // 0: no bound
  uint64_t budget_ns = 0;       // of GPU time in a calendar month (UTC); 0: none
  uint64_t budget_used_ns = 0;  // of this month, where anybody has a budget
  bool budget_hard = false;
  std::vector<UserMetrics> users;            // by name, or of very many those that have used most
  std::map<std::string, uint64_t> sessions;  // now, by state
  std::vector<TenantDeviceMetrics> devices;
  uint64_t host_memory_used_bytes = 0, host_memory_limit_bytes = 0;  // of the server's own memory
  uint64_t chunk_memory_bytes = 0, chunk_memory_limit_bytes = 0;     // what its chunk store holds in memory
  uint64_t chunk_disk_bytes = 0, chunk_disk_limit_bytes = 0;         // and on disk
  uint64_t chunks_found = 0, chunk_bytes_found = 0;  // of copies to the device, that its clients have not had to send
  uint64_t chunk_bytes_kept = 0;                     // that were written to the store
  uint64_t bytes_in = 0, bytes_out = 0;              // ended sessions included
  uint64_t replies = 0;                              // times that a program has waited for an answer
  uint64_t begun = 0;                                // sessions, since the start
  uint64_t worker_waits = 0;                         // sessions for which no worker was ready when they got their GPUs
  std::map<std::string, uint64_t> ended;             // by cause
  std::map<std::string, uint64_t> refused;           // logins, by reason
  HistogramMetrics queue_wait_s;                     // of sessions that were admitted
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
  std::string user;  // who of the tenant; empty: nobody in particular
  std::string service_class;
  std::string state;           // queued, starting, granted, running, detached, ending
  double detached_left_s = 0;  // detached: until it ends if its client does not come back; else 0
  std::string peer, program, host, security;
  std::string credential;  // a certificate's serial or a token's number
  int64_t client_pid = 0, worker_pid = 0;
  double since_unix_s = 0;  // begun, or queued
  uint64_t place = 0;       // in the queue, from 1; 0: it does not wait
  std::string waits_for;
  std::optional<double> start_in_s;  // in the queue: until it may expect to start; nothing: not known
  std::vector<SessionDeviceMetrics> devices;
  uint64_t memory_limit_bytes = 0;  // on each; 0: the whole device
  uint64_t gpu_time_ns = 0;         // since it began
  bool gate_open = true;
  bool holds_lease = false;
  uint64_t leases = 0;  // that it was granted since it began
  std::string
      held;  // why its next work stands at the gate: turn, class, drain, gang, no-show, sibling; empty: it does not
  uint64_t held_by = 0;       // the session that it waits for; 0: none in particular
  uint64_t in_flight_ns = 0;  // estimated GPU time of submitted work that is not done
  uint64_t gate_waits = 0, gate_wait_ns = 0;
  uint64_t bytes_in = 0, bytes_out = 0;
  uint64_t chunks_found = 0, chunk_bytes_found = 0, chunk_bytes_kept = 0;  // TenantMetrics'
  uint64_t replies = 0;        // times that the program has waited for an answer
  uint32_t round_trip_us = 0;  // 0: not known
  std::string warning;         // of a runaway
  bool operator==(const SessionMetrics&) const = default;
};

inline constexpr size_t kSessionsShownMax = 4096, kCertificatesShownMax = 512;

struct Snapshot {
  uint64_t taken_ns = 0;  // on a clock that never goes back, of the server's host
  double taken_unix_s = 0;
  ServerMetrics server;
  std::vector<DeviceMetrics> devices;       // by index
  std::vector<TenantMetrics> tenants;       // by name
  std::vector<SessionMetrics> sessions;     // by id
  std::map<std::string, uint64_t> refused;  // callers of whom no tenant is known, by reason
  bool operator==(const Snapshot&) const = default;
};

}  // namespace gpuwire::server
