// The rights that a worker gives up before it serves a client.
#pragma once

#include <filesystem>
#include <optional>
#include <string>
#include <vector>

#include <sys/types.h>
#include <tl/expected.hpp>

namespace gpuwire::server {

enum class Confinement : uint8_t {
  enforce,
  log,  // the kernel only logs system calls, which shows the needs of a new driver
  off,  // for debuggers
};

struct ConfinementRules {
  Confinement level = Confinement::enforce;
  std::optional<uid_t> real_user;              // of its own (server/confinement/real_user.hpp)
  bool rdma = false;                           // offered: UCX's connections, devices and files are left
  std::vector<std::filesystem::path> devices;  // device_files()
  std::vector<std::filesystem::path> read;     // besides the system's libraries and the driver's files
  std::vector<std::filesystem::path> write;    // made when they are missing, if they can be
};

// Returns the device files of NVIDIA's driver and, with `rdma`, of network cards. Called before confine_process(),
// which makes their folder inaccessible.
std::vector<std::filesystem::path> device_files(bool rdma = false);

// Gives up privileges, root's capabilities, core files (they would hold the client's data), all descriptors but the
// broker's, and all files but those of the rules. Precondition: no other thread exists. Until it has a session the
// process dies with the broker. Returns the rules that the kernel cannot enforce, in one line, or an empty string.
tl::expected<std::string, std::string> confine_process(const ConfinementRules& rules);

// Restricts all threads to the writable folders `write`. Called when the tenant is known. An error ends the session.
tl::expected<void, std::string> confine_to_tenant(const ConfinementRules& rules,
                                                  const std::vector<std::filesystem::path>& write);

// Bounds the growth of memory that the process maps to `bytes` and kHostSlackBytes. 0: no bound. Called when there is a
// session.
void bound_own_memory(uint64_t bytes);

// Bounds each file that the process writes to `bytes`, or kWorkerFileBytes if that is more. Called when there is a
// session.
inline constexpr uint64_t kWorkerFileBytes = uint64_t{4} << 30;  // the largest image, and the driver's files
void bound_own_files(uint64_t bytes);

// From now on a system call that is not on the list ends the process. Called when the driver is open and before the
// first byte of a client.
tl::expected<void, std::string> confine_system_calls(const ConfinementRules& rules);

}  // namespace gpuwire::server
