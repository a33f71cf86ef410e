// Programs as the model's tenants run them, shaped like those that `bench/sharing/run --rows pairs` has on a GPU.
#pragma once

#include "test/scheduler/simulation/world.hpp"

namespace gpuwire::scheduler::test::programs {

using std::chrono::microseconds;

// Launches kernel by kernel, waits for all of them, rests.
inline Workload launches(unsigned count, Duration kernel, Duration every, Duration rest) {
  return {.kernel = kernel, .rest_min = rest, .rest_max = rest, .launches = count, .launch_every = every};
}
// PyTorch, eager: the host needs longer for a launch than the GPU for the kernel, so the queue runs empty all the time.
inline Workload inference() { return launches(36, microseconds(4), microseconds(12), microseconds(20)); }
inline Workload small_training() { return launches(110, microseconds(18), microseconds(22), microseconds(50)); }
// The GPU is what bounds it.
inline Workload large_training() { return launches(135, microseconds(90), microseconds(12), microseconds(100)); }
// Large copies both ways around a kernel, over a network.
inline Workload copies() {
  Workload load = launches(1, microseconds(25), microseconds(5), microseconds(1000));
  load.copies = microseconds(2000);
  return load;
}
inline Workload sync_loop() { return launches(1, microseconds(100), microseconds(5), microseconds(17)); }
inline Workload graphs() { return launches(1, microseconds(400), microseconds(5), microseconds(20)); }
inline Workload stream(Duration kernel = microseconds(100)) { return {.kernel = kernel}; }
// Between two kernels its pages travel, whatever its gate says.
inline Workload managed_memory() {
  Workload load = launches(1, microseconds(30), microseconds(5), microseconds(300));
  load.unasked = microseconds(60);
  return load;
}

}  // namespace gpuwire::scheduler::test::programs
