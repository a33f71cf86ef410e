// The devices, as a ready worker reports them to the broker, which asks no driver itself.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "scheduler/types.hpp"

namespace gpuwire::server {

struct ServerDevice {
  scheduler::DeviceIndex index = 0;  // of the server: as a worker counts that is shown all of them
  uint64_t bytes = 0;                // of memory in all
  uint64_t taken_bytes = 0;          // of it, when a worker has just made its context there; 0: none was made
  std::string name;
  std::string uuid;  // "GPU-..."
};

struct Inventory {
  std::string summary;  // for the line that says where the server listens
  std::vector<ServerDevice> devices;
};

}  // namespace gpuwire::server
