// The management library as this program uses it: opened by name, functions called by name, so that it runs over any
// libnvidia-ml.so.1.
#pragma once

#include <string>
#include <vector>

#include <dlfcn.h>

#include "protocol/nvml/abi.hpp"

namespace gpuwire::nvidia_smi {

class Library {
 public:
  // Opens and initialises; on failure status() and problem() say why.
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
  unsigned count = 0;  // devices there are

  template <class... Arguments>
  int call(const char* function, Arguments... arguments) const {
    return library.call(function, device, arguments...);
  }
};

std::vector<Card> all_cards(const Library& library);
// Those that `names` (comma-separated: index, UUID, PCI address or serial number) speaks of; empty when one of them is
// no device's.
std::vector<Card> find_cards(const Library& library, const std::string& names);

}  // namespace gpuwire::nvidia_smi
