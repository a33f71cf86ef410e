// One table with the rights of each kind of confined process of a server. The filters and the table of
// docs/security.md are made from it. A test tries all other calls in a process of each kind.
#pragma once

#include <cstdint>
#include <span>
#include <string>

#include <tl/expected.hpp>

#include "server/confinement/system_calls.hpp"

namespace gpuwire::server {

enum class ProcessKind : uint8_t { login, web, web_tls, worker, rdma_worker, suspender };

struct ProcessRights {
  ProcessKind kind;
  // In words, for people.
  const char *name, *user, *files, *sockets, *limits;
  // The system calls, with any arguments, in two parts; the reasons stand beside each group.
  std::span<const char*const> calls, more_calls;
  // Calls that may be made with these arguments only.
  std::span<const ArgumentRule> rules;
};

std::span<const ProcessRights> process_rights();
const ProcessRights& rights_of(ProcessKind kind);

// Restricts the process to these calls, and refuses actions against other processes (forbid_reaching_others).
tl::expected<void, std::string> confine_system_calls(ProcessKind kind, Violation violation);

// Returns the table in Markdown, with its header.
std::string rights_table();

}  // namespace gpuwire::server
