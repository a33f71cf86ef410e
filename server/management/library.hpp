// The management library that a server queries, and its devices.
#pragma once

#include <span>
#include <string>
#include <vector>

#include <tl/expected.hpp>

#include "nvml/table.hpp"

namespace gpuwire::server {

class DriverLibrary;

// NVIDIA's library with NVIDIA's driver; without the library, or with the software device, the driver's own facts
// (software_library.hpp). Exists as long as the process.
class ManagementLibrary {
 public:
  static ManagementLibrary open(const DriverLibrary& driver);

  const nvml::Table& table() const { return table_; }
  // For a layer that wraps some functions, before the first call.
  nvml::Table& table() { return table_; }
  // Indexed by the driver's ordinals, which are the session's.
  std::span<const nvmlDevice> devices() const { return devices_; }
  // Not empty: the reason why NVIDIA's library is not used with NVIDIA's driver.
  const std::string& note() const { return note_; }

 private:
  tl::expected<void, std::string> open_nvidia(const DriverLibrary& driver);
  nvml::Table table_;
  std::vector<nvmlDevice> devices_;
  std::string note_;
};

}  // namespace gpuwire::server
