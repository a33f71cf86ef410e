// OpenSSL's random numbers from a seed: its own generator depends on the process's earlier use, and so would the
// schedule of the threads that use it.
#pragma once

#include <cstdint>

namespace gpuwire::simulation {

// Seeds OpenSSL for the whole process, from now on.
void seed_openssl(uint64_t seed);

}  // namespace gpuwire::simulation
