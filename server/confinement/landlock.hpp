// The part of the file system that a process may reach from now on, enforced by the kernel (Landlock, landlock(7)).
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
  std::filesystem::path path;  // a missing one is left out
  PathAccess access = PathAccess::read;
};

// Everything that no rule allows is refused with EACCES, executing programs everywhere, and, if the kernel can, TCP
// connections and listening (unless `network` allows them), signals to other processes, and abstract Unix sockets of
// other processes. Holds for the calling thread and the threads and processes that it starts, for good: call it before
// there are others. Needs no privileges (sets no_new_privs).
//
// Returns the rules that this kernel could not enforce, empty when it enforces all; an error when Landlock exists but
// refuses.
tl::expected<std::string, std::string> restrict_paths(std::span<const PathRule> rules, Network network = Network::none);

// Once more for a process that has threads by now: all of them keep only the rights of these rules, too. Rules may name
// files that the process could not open itself. The error: some thread may reach more.
tl::expected<void, std::string> restrict_paths_further(std::span<const PathRule> rules,
                                                       Network network = Network::none);

}  // namespace gpuwire::server
