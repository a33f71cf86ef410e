// How many processors there are for this process.
#pragma once

namespace gpuwire {

// On how many processors the calling thread may run, as its affinity says; at least 1. Asked of the system each time.
unsigned usable_cores() noexcept;

}  // namespace gpuwire
