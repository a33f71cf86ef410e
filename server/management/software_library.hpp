// Management queries about devices of which only the driver knows: the software device, or a server without NVIDIA's
// management library.
#pragma once

#include <vector>

#include "nvml/table.hpp"

namespace gpuwire::server {

class DriverLibrary;

// Fills in the functions that the driver's facts can answer; every other one answers kNotSupported. The devices are by
// the driver's ordinals, and live as long as the process.
std::vector<nvmlDevice> software_management(const DriverLibrary& driver, nvml::Table& table);

}  // namespace gpuwire::server
