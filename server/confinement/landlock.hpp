// Restricts the files that a process can access. The kernel enforces the rules (Landlock, landlock(7)).
#pragma once

#include <filesystem>
#include <span>
#include <string>
#include <vector>

#include <tl/expected.hpp>

namespace gpuwire::server {

enum class PathAccess : uint8_t {
  read,    // files below are read and mapped, folders listed
  write,   // and files below are made, written, renamed and removed
  device,  // and device files below are used: read, written, ioctl
};

// TCP connections and listening.
enum class Network : uint8_t { none, allowed };

struct PathRule {
  // A missing one is left out.
  std::filesystem::path path;
  PathAccess access = PathAccess::read;
};

// The kernel refuses every access that no rule allows with EACCES. It also refuses to execute programs, and, if it
// supports this, TCP connections and listening (unless `network` allows them), signals to other processes, and abstract
// Unix sockets of other processes. It also refuses to inspect processes that are not restricted by the same call
// (/proc/PID/fd, ptrace). The restriction applies permanently to the calling thread and to the threads and processes
// that it starts: call it before other threads exist. Needs no privileges (sets no_new_privs).
//
// Returns the rules that this kernel could not enforce, empty when it enforces all; an error when Landlock exists but
// refuses.
tl::expected<std::string, std::string> restrict_paths(std::span<const PathRule> rules, Network network = Network::none);

// Restricts a process with threads further: all of them keep only the rights that these rules also allow. Rules may
// name files that the process cannot open itself. The error: some thread may have more rights.
tl::expected<void, std::string> restrict_paths_further(std::span<const PathRule> rules,
                                                       Network network = Network::none);

}  // namespace gpuwire::server
