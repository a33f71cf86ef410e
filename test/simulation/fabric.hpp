// A fabric inside one process, whose faults a seed decides: fabric.cpp is loaded as any plug-in for RDMA is
// (protocol/transport/rdma_plugin.hpp). Messages come late and in another order, small ones by themselves and large
// ones to be fetched; strangers send some, too; ends break.
#pragma once

#include <cstdint>

// What it does from now on. With `breaks_max` 0 no end breaks by itself.
using GpuwireSimulatedFabricBegin = void (*)(uint64_t seed, unsigned breaks_max);
inline constexpr const char* kGpuwireSimulatedFabricBegin = "gpuwire_simulated_fabric_begin";
