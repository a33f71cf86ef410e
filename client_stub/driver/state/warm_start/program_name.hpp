// The identity of this process's program, under which its earlier runs stored their profile.
#pragma once

#include <cstdint>
#include <span>
#include <string>

#include "client_stub/driver/state/warm_start/warm_start.hpp"

namespace gpuwire::client {

// Returns the interpreter's argument that names the program: the script's file, or the text behind `-c` or `-m`.
// `arguments` begins with the interpreter's own name. Empty for other executables, and for an interpreter without a
// program.
std::string script_of(const std::string& executable, std::span<const std::string> arguments);

// Returns a digest of the executable (path, size and time) and the script (path). Nothing: the system cannot answer.
SubjectDigest program_digest(const std::string& executable, uint64_t bytes, int64_t changed_ns,
                             const std::string& script);
// Returns the digest of this process's program.
SubjectDigest own_program_digest();

}  // namespace gpuwire::client
