// The management library: the program opens it and looks up its functions by name, so it works with any
// libnvidia-ml.so.1.
#pragma once

#include <string>
#include <vector>

#include <dlfcn.h>

#include "protocol/nvml/abi.hpp"

namespace gpuwire::nvidia_smi {

class Library {
 public:
  // Opens and initialises the library; on failure status() and problem() have the reason.
  Library();
  ~Library();
  Library(const Library&) = delete;
  Library& operator=(const Library&) = delete;

  int status() const { return status_; }

  template <class... Arguments>
  int call(const char* function, Arguments... arguments) const {
    auto found = handle_ ? reinterpret_cast<int (*)(Arguments...)>(::dlsym(handle_, function)) : nullptr;
    return found ? found(arguments...) : int(nvml::kFunctionNotFound);
  }
  std::string error_text(int status) const;

 private:
  void* handle_ = nullptr;
  int status_ = nvml::kLibraryNotFound;
};

// One device.
struct Card {
  const Library& library;
  nvmlDevice device = nullptr;
  unsigned index = 0;
  // The number of devices.
  unsigned count = 0;

  template <class... Arguments>
  int call(const char* function, Arguments... arguments) const {
    return library.call(function, device, arguments...);
  }
};

std::vector<Card> all_cards(const Library& library);
// Returns the devices that `names` (comma-separated: index, UUID, PCI address or serial number) lists; empty if a name
// matches no device.
std::vector<Card> find_cards(const Library& library, const std::string& names);

}  // namespace gpuwire::nvidia_smi
