// The limit of the size of this process's files (RLIMIT_FSIZE). A write beyond it raises SIGXFSZ, which ends a program
// that does not expect it.
#pragma once

#include <cstddef>
#include <cstdint>

namespace gpuwire::client {

// Any file, including memory files.
bool may_grow_to(uint64_t bytes) noexcept;
// Returns whether this many bytes may be written at the descriptor's position, or at the end of a file in append mode.
// True for everything but regular files.
bool may_write(int descriptor, size_t bytes) noexcept;

}  // namespace gpuwire::client
