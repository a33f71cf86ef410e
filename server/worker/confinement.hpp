// What a worker gives up before it meets a client.
#pragma once

#include <filesystem>
#include <string>
#include <vector>

#include <tl/expected.hpp>

namespace gpuwire::server {

enum class Confinement : uint8_t {
  enforce,
  log,  // system calls are only logged, by the kernel: for finding out what a new driver needs
  off,  // for debuggers
};

struct ConfinementRules {
  Confinement level = Confinement::enforce;
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
// Gives what the kernel cannot enforce, one line, or nothing.
tl::expected<std::string, std::string> confine_process(const ConfinementRules& rules);

// When the tenant is known: of what was to be written in, all threads keep only `write`. The error ends the session.
tl::expected<void, std::string> confine_to_tenant(const ConfinementRules& rules,
                                                  const std::vector<std::filesystem::path>& write);

// When there is a session: memory that the process maps for itself may grow by so much and kHostSlackBytes. 0: no
// bound.
void bound_own_memory(uint64_t bytes);

// When the driver is open and before the first byte of a client: from here on a system call that is not on the list
// ends the process.
tl::expected<void, std::string> confine_system_calls(const ConfinementRules& rules);

}  // namespace gpuwire::server
