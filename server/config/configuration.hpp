// The content of a server's configuration file, checked as a whole. docs/configuration.md is the reference.
#pragma once

#include <cstdint>
#include <filesystem>
#include <map>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include <tl/expected.hpp>

#include "scheduler/suspension.hpp"
#include "scheduler/types.hpp"
#include "server/config/user_range.hpp"

namespace gpuwire::server {

struct TenantMemory {
  uint64_t guaranteed_bytes = 0;
  uint64_t limit_bytes = 0;  // 0: the whole device
  bool operator==(const TenantMemory&) const = default;
};

// GPU time that may be used in a calendar month (UTC).
struct MonthlyBudget {
  uint64_t ms = 0;    // 0: no bound
  bool hard = false;  // beyond it programs wait for the next month; else they run as scavengers
  bool operator==(const MonthlyBudget&) const = default;
};

// One user's part of a tenant's resources.
struct UserConfiguration {
  unsigned sessions_max = 0;        // that run at once; 0: no bound but the tenant's
  uint64_t memory_limit_bytes = 0;  // of each GPU; 0: no bound but the tenant's
  MonthlyBudget budget;
  bool operator==(const UserConfiguration&) const = default;
};

struct TenantConfiguration {
  std::string name;  // 1 to 64 of [A-Za-z0-9._-]
  scheduler::ServiceClass service_class = scheduler::ServiceClass::batch;
  double weight = 1;
  double share_max = 0.9;                       // realtime
  double share_min = 0;                         // scavenger
  TenantMemory memory;                          // on every GPU ...
  std::map<unsigned, TenantMemory> gpu_memory;  // ... but on these
  uint64_t host_memory_bytes = 0;               // of the server's own memory; 0: a part of the machine's
  // The sizes of the tenant's chunk store in memory, which counts as host memory (none: a part of that), and on disk;
  // 0: no store.
  std::optional<uint64_t> dedup_memory_bytes;
  uint64_t dedup_disk_bytes = 0;
  std::vector<unsigned> gpus_allowed;                      // empty: all
  unsigned gpus_wanted = 1;                                // of a session that names no number; 0: all allowed GPUs
  unsigned sessions_max = 0;                               // that run at once; 0: no bound
  unsigned queued_max = 32;                                // that wait at once
  unsigned management_max = 32;                            // that ask NVML at once
  uint64_t queue_time_max_ms = 0;                          // the longest wait; 0: no bound
  uint64_t kernel_time_max_ms = 0;                         // 0: no bound
  uint64_t idle_time_max_ms = 0;                           // 0: no bound
  scheduler::Suspend suspend = scheduler::Suspend::never;  // when the server suspends its idle sessions
  uint64_t suspend_after_ms = 10 * 60'000;                 // the idle time of a session before that
  uint64_t suspend_memory_bytes = 0;                       // for its suspended sessions; 0: the server's bound alone
  bool suspend_eviction = false;                           // large blocks leave the device by copies of the worker
  std::optional<uint64_t>
      resume_grace_max_ms;  // bounds the server's resume_grace_ms for its sessions; 0: they end with their connections
  std::vector<std::string> unix_users;  // users of this machine who are this tenant when they come over a Unix socket
  MonthlyBudget budget;
  UserConfiguration each_user;                     // for the tenant's users without their own values
  std::map<std::string, UserConfiguration> users;  // by name
  bool operator==(const TenantConfiguration&) const = default;
};

// Whether each worker gets its own real user (server/confinement/real_user.hpp).
struct WorkerUsersChoice {
  enum class From : uint8_t { off, subordinate, range } from = From::off;  // subordinate: as /etc/subuid says
  UserRange range;                                                         // of From::range
  bool operator==(const WorkerUsersChoice&) const = default;
};

struct Configuration {
  struct Tls {
    std::filesystem::path directory;  // the folder of `gpuwire admin init`; empty: no TLS
    bool operator==(const Tls&) const = default;
  };
  std::vector<std::string> listen;  // HOST:PORT or unix:PATH
  Tls tls;
  bool allow_unencrypted_network = false;
  std::optional<std::string>
      open_tenant;  // the tenant of callers on plain loopback without a credential; none: they must show a token
  std::vector<unsigned> gpus;             // offered; empty: all
  uint64_t resume_grace_ms = 5 * 60'000;  // the time for which a session outlives its connection; 0: it ends with it
  // The same time for a connection that was closed and not lost, by the program's end or by a device in between.
  uint64_t hang_up_grace_ms = 5 * 60'000;
  std::optional<unsigned> lanes_max;        // further connections of a session for bulk; 1: none; nothing: the default
  bool rdma = false;                        // offered, in plain bytes: the fabric is trusted
  std::string cupti = "auto";               // measures profiles; or "off", or the library's path
  WorkerUsersChoice worker_users;           // whose processes sessions' are
  std::filesystem::path runtime_directory;  // for state that outlives the server's process; empty: the default one
  std::filesystem::path dedup_directory;    // of the tenants' chunk stores on disk; empty: the default one
  std::filesystem::path budget_file;        // for the used GPU time of budgets; empty: the default one
  uint64_t adopt_grace_ms = 5 * 60 * 1000;  // the time for which sessions run without a server; 0: they end with it
  unsigned sessions_max = 64;
  unsigned sessions_per_gpu_max = 0;               // 0: no bound
  uint64_t suspend_memory_bytes = 0;               // for all suspended sessions; 0: the machine's available memory
  std::string metrics_listen;                      // HOST:PORT of the Prometheus endpoint; empty: none
  std::string web_listen;                          // HOST:PORT of the web page; empty: none
  std::filesystem::path web_certificate, web_key;  // of the web page; empty: it is not encrypted
  std::filesystem::path control_socket;            // for top, status and admin; empty: the default
  std::filesystem::path audit_log;                 // empty: audit lines go to the log
  bool scheduling = true;           // false: the hardware shares the GPUs; for measuring the cost of scheduling
  double batch_floor = 0.05;        // of each GPU's time: batch's, while interactive tenants keep the GPU
  std::string log_format = "text";  // or "json"
  std::vector<TenantConfiguration> tenants;
};

// The command line's values, which override the file's.
struct ConfigurationOverrides {
  std::vector<std::string> listen;  // empty: the file's value applies
  std::optional<unsigned> sessions_max;
  bool allow_unencrypted_network = false;
};

// Returns the tenant's memory on this GPU.
TenantMemory memory_on(const TenantConfiguration& tenant, unsigned gpu);
// Parses "200h/month", or "none", into milliseconds. The error describes a valid value.
tl::expected<uint64_t, std::string> parse_budget(std::string_view text);
// Returns the user's part of the tenant's resources; nothing for a caller without a user's name.
UserConfiguration bounds_of_user(const TenantConfiguration& tenant, const std::string& user);
// Returns whether the tenant or one of its users has a budget.
bool has_budget(const TenantConfiguration& tenant);
// Returns whether a user of the tenant has its own limit of memory.
bool bounds_memory_of_users(const TenantConfiguration& tenant);
// Returns whether memory is guaranteed to the tenant on any GPU.
bool has_guarantee(const TenantConfiguration& tenant);

// All mistakes, one line each, "FILE:LINE: message".
using ConfigurationErrors = std::vector<std::string>;
// The usable part of a configuration file, and every mistake in it.
struct ReadConfiguration {
  Configuration configuration;
  ConfigurationErrors mistakes;
};
ReadConfiguration check_configuration_file(const std::filesystem::path& file,
                                           const ConfigurationOverrides& overrides = {});
tl::expected<Configuration, ConfigurationErrors> read_configuration(const std::filesystem::path& file,
                                                                    const ConfigurationOverrides& overrides = {});
// Returns the mismatches of configuration and devices: missing GPUs, guarantees that do not fit together.
// `device_bytes`: the memory of each GPU. Empty: the configuration fits.
ConfigurationErrors check_devices(const Configuration& configuration, const std::vector<uint64_t>& device_bytes);
// The tenant of a server without a configuration file.
inline constexpr const char* kOpenTenant = "open";
// Returns the configuration without a file: one tenant named "open" on loopback, all devices, no limits.
Configuration open_configuration();
// Returns the same with the command line's values. Mistakes: invalid addresses.
ReadConfiguration check_open_configuration(const ConfigurationOverrides& overrides);
tl::expected<Configuration, ConfigurationErrors> open_configuration(const ConfigurationOverrides& overrides);

}  // namespace gpuwire::server
