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
  log,  // the kernel only logs system calls: for finding out the needs of a new driver
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

// Those of NVIDIA's driver on this machine, and of network cards where there is to be RDMA. Before confine_process(),
// which puts their folder out of reach.
std::vector<std::filesystem::path> device_files(bool rdma = false);

// Before any other thread: no new privileges, none of root's left, no core files (they would hold the client's data),
// no descriptor but the broker's, only the files of the rules. Until it has a session the process dies with the broker.
// Returns the rules that the kernel cannot enforce, one line, or nothing.
tl::expected<std::string, std::string> confine_process(const ConfinementRules& rules);

// When the tenant is known: of the writable folders, all threads keep only `write`. The error ends the session.
tl::expected<void, std::string> confine_to_tenant(const ConfinementRules& rules,
                                                  const std::vector<std::filesystem::path>& write);

// When there is a session: memory that the process maps for itself may grow by this much and kHostSlackBytes. 0: no
// bound.
void bound_own_memory(uint64_t bytes);

// When there is a session: no file that the process writes may grow beyond this size, or kWorkerFileBytes if that is
// more.
inline constexpr uint64_t kWorkerFileBytes = uint64_t{4} << 30;  // the largest image, and the driver's files
void bound_own_files(uint64_t bytes);

// When the driver is open and before the first byte of a client: from here on a system call that is not on the list
// ends the process.
tl::expected<void, std::string> confine_system_calls(const ConfinementRules& rules);

}  // namespace gpuwire::server
