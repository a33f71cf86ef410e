// The devices that a ready worker reports to the broker, which uses no driver itself.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "scheduler/types.hpp"

namespace gpuwire::server {

struct ServerDevice {
  scheduler::DeviceIndex index = 0;  // of the server, as counted by a worker that sees all of them
  uint64_t bytes = 0;                // of memory in all
  uint64_t taken_bytes = 0;          // free after a worker has just made its context there; 0: no context
  std::string name;
  std::string uuid;  // "GPU-..."
};

struct Inventory {
  std::string summary;  // for the line with the server's addresses
  std::vector<ServerDevice> devices;
};

}  // namespace gpuwire::server
