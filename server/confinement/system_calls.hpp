// Which system calls a process may make from now on, enforced by the kernel (seccomp(2), by way of libseccomp).
#pragma once

#include <span>
#include <string>

#include <tl/expected.hpp>

namespace gpuwire::server {

enum class Violation : uint8_t {
  kill,  // the process ends with SIGSYS
  log,   // the call is made, and the kernel's log says so: for finding out what a new driver needs
};

// All threads of the process, for good. Names that this machine's kernel or libseccomp does not know are left out.
// Besides `names`, signals may be sent to the process itself, memory may be mapped, and threads started, but no
// processes.
tl::expected<void, std::string> allow_system_calls(std::span<const char* const> names, Violation violation);

// What the process may do to others of its user without any privilege is refused from now on: to change their limits,
// priority or processors, to have signals sent to them, to type into a terminal. Before allow_system_calls(), whose
// list has the same calls for what a process does to itself. All threads, for good.
tl::expected<void, std::string> forbid_reaching_others(Violation violation);

// What a worker's threads, its driver and the C library need. The reasons stand beside each group.
std::span<const char* const> worker_system_calls();
// And UCX's, of a worker that offers RDMA.
std::span<const char* const> rdma_system_calls();

// Gives up all of root's privileges, for good; without any, does nothing. The calling thread and those that it starts.
void drop_capabilities();

}  // namespace gpuwire::server
