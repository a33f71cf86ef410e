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
  // The kernel only logs system calls, which shows the needs of a new driver.
  log,
  // For debuggers.
  off,
};

struct ConfinementRules {
  Confinement level = Confinement::enforce;
  // A user of the worker's own (server/confinement/real_user.hpp).
  std::optional<uid_t> real_user;
  // RDMA is offered, so UCX's connections, devices and files stay accessible.
  bool rdma = false;
  // The result of device_files().
  std::vector<std::filesystem::path> devices;
  // Readable files, besides the system's libraries and the driver's files.
  std::vector<std::filesystem::path> read;
  // Writable folders. Missing ones are made, if possible.
  std::vector<std::filesystem::path> write;
  // The descriptor of an open file that stays open besides the broker's channel; -1: none.
  int kept_descriptor = -1;
};

// Returns the device files of NVIDIA's driver and, with `rdma`, of network cards. Called before confine_process(),
// which makes their folder inaccessible.
std::vector<std::filesystem::path> device_files(bool rdma = false);

// Gives up privileges, root's capabilities, core files (they would hold the client's data), all descriptors but the
// broker's and the kept one, and all files but those of the rules. Precondition: no other thread exists. Until it has a
// session the process dies with the broker. Returns the rules that the kernel cannot enforce, in one line, or an empty
// string.
tl::expected<std::string, std::string> confine_process(const ConfinementRules& rules);

// Restricts all threads to the writable folders `write`. Called when the tenant is known. An error ends the session.
tl::expected<void, std::string> confine_to_tenant(const ConfinementRules& rules,
                                                  const std::vector<std::filesystem::path>& write);

// Bounds the growth of memory that the process maps to `bytes` and kHostSlackBytes. 0: no bound. Called when there is a
// session.
void bound_own_memory(uint64_t bytes);

// Bounds each file that the process writes to `bytes`, or kWorkerFileBytes if that is more. Called when there is a
// session.
// Room for the largest image and the driver's files.
inline constexpr uint64_t kWorkerFileBytes = uint64_t{4} << 30;
void bound_own_files(uint64_t bytes);

// Ends the process at any system call that is not on the list. Called when the driver is open and before the first byte
// of a client.
tl::expected<void, std::string> confine_system_calls(const ConfinementRules& rules);

}  // namespace gpuwire::server
