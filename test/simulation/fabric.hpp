// A fabric inside one process with faults from a seed: fabric.cpp is loaded like any RDMA plug-in
// (protocol/transport/rdma_plugin.hpp). Messages come late and reordered, small ones directly and large ones to be
// fetched; strangers send some, too; ends break.
#pragma once

#include <cstdint>

// Sets the faults from now on. With `breaks_max` 0 no end breaks by itself.
using GpuwireSimulatedFabricBegin = void (*)(uint64_t seed, unsigned breaks_max);
inline constexpr const char* kGpuwireSimulatedFabricBegin = "gpuwire_simulated_fabric_begin";
