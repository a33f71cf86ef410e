// Answers management queries from the driver's facts alone: for the software device, or a server without NVIDIA's
// management library.
#pragma once

#include <vector>

#include "nvml/table.hpp"

namespace gpuwire::server {

class DriverLibrary;

// Fills in the functions that the driver's facts can answer; every other function returns kNotSupported. The devices
// have the driver's ordinals, and exist as long as the process.
std::vector<nvmlDevice> software_management(const DriverLibrary& driver, nvml::Table& table);

}  // namespace gpuwire::server
