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
// NCCL of one rank: a little arithmetic, a collective that is a copy, and the result on the host.
inline Workload nccl() { return launches(4, microseconds(8), microseconds(15), microseconds(40)); }
// A host that is late with one iteration in so many.
inline Workload with_late_host(Workload load, double probability, Duration late) {
  load.hiccup_probability = probability;
  load.hiccup = late;
  return load;
}
// The way back has fewer and longer kernels than the way there: of `load`'s launches, the last `others`.
inline Workload with_way_back(Workload load, unsigned others, Duration other_kernel) {
  load.others = others;
  load.other_kernel = other_kernel;
  return load;
}
// Small and large training with such a host and such a way back.
inline Workload uneven_small_training() {
  const Workload there = launches(110, microseconds(10), microseconds(22), microseconds(50));
  return with_late_host(with_way_back(there, 30, microseconds(39)), 0.05, microseconds(1500));
}
inline Workload uneven_large_training() {
  const Workload there = launches(135, microseconds(40), microseconds(12), microseconds(100));
  return with_late_host(with_way_back(there, 35, microseconds(230)), 0.05, microseconds(2000));
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

// The loop of bench/sharing/pair_tenant: a kernel that is over as soon as it has begun, and waited for.
inline Workload tight_loop() { return launches(1, microseconds(3), microseconds(5), microseconds(14)); }
// Copies that come in bursts of unlike length: a busy host, or a road that others use.
inline Workload uneven_copies() { return with_late_host(copies(), 0.1, microseconds(4000)); }
// All that its pages and its host do between two kernels, as long as several of the device's slices.
inline Workload page_faults() {
  Workload load = launches(1, microseconds(60), microseconds(5), microseconds(900));
  load.unasked = microseconds(120);
  return with_late_host(load, 0.05, microseconds(3000));
}

}  // namespace gpuwire::scheduler::test::programs
