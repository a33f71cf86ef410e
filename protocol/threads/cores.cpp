#include "protocol/threads/cores.hpp"

#include <sched.h>

#include <algorithm>

namespace gpuwire {

unsigned usable_cores() noexcept {
  cpu_set_t cores;
  return sched_getaffinity(0, sizeof cores, &cores) == 0 ? std::max(unsigned(CPU_COUNT(&cores)), 1u) : 1;
}

}  // namespace gpuwire
