// OpenSSL's random numbers out of a seed: what they are drawn from otherwise changes with what the process has done
// before, and so would the order in which threads are let into it.
#pragma once

#include <cstdint>

namespace gpuwire::simulation {

// Of the whole process, from here on.
void seed_openssl(uint64_t seed);

}  // namespace gpuwire::simulation
