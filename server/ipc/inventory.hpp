// The devices that a ready worker reports to the broker, which uses no driver itself.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "scheduler/types.hpp"

namespace gpuwire::server {

struct ServerDevice {
  // The index at the server, as a worker counts that sees all devices.
  scheduler::DeviceIndex index = 0;
  // The whole memory of the device.
  uint64_t bytes = 0;
  // Free after a worker has just made its context there; 0: no context.
  uint64_t taken_bytes = 0;
  std::string name;
  // "GPU-...".
  std::string uuid;
};

struct Inventory {
  // For the line with the server's addresses.
  std::string summary;
  std::vector<ServerDevice> devices;
};

}  // namespace gpuwire::server
