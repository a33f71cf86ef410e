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
  std::vector<std::filesystem::path> read;   // besides the system's libraries and the driver's files
  std::vector<std::filesystem::path> write;  // made when they are missing, if they can be
};

// Before any other thread: no new privileges, none of root's left, no core files (they would hold the client's data), no descriptor but the broker's, only the
// files of the rules. Until it has a session the process dies with the broker. Gives what the kernel cannot enforce, one line, or nothing.
tl::expected<std::string, std::string> confine_process(const ConfinementRules& rules);

// When the driver is open and before the first byte of a client: from here on a system call that is not on the list ends the process.
tl::expected<void, std::string> confine_system_calls(Confinement level);

}  // namespace gpuwire::server
