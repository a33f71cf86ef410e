// The number of processors for this process.
#pragma once

namespace gpuwire {

// Returns the number of processors on which the calling thread may run (its affinity); at least 1. Asks the kernel each
// time.
unsigned usable_cores() noexcept;

}  // namespace gpuwire
