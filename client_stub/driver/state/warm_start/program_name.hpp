// Which program this process runs, as what its earlier runs have written down is found by.
#pragma once

#include <cstdint>
#include <span>
#include <string>

#include "client_stub/driver/state/module/program_image.hpp"

namespace gpuwire::client {

// What of an interpreter's arguments, the first of which is its own name, says what it runs: the script's file, or what
// follows `-c` or `-m`. Of other executables, and of an interpreter that is told nothing: empty.
std::string script_of(const std::string& executable, std::span<const std::string> arguments);

// Digest of the executable (its path, size and time) and the script (its path). Nothing: the system does not say.
ProgramImage::Digest program_digest(const std::string& executable, uint64_t bytes, int64_t changed_ns,
                                    const std::string& script);
// Those of this process.
ProgramImage::Digest own_program_digest();

}  // namespace gpuwire::client
