// One thing that is printed about a device.
#pragma once

#include <string>

#include "client_stub/nvidia_smi/library.hpp"

namespace gpuwire::nvidia_smi {

struct Value {
  std::string text;
  const char* unit = "";  // "MiB", or none
  bool known = true;      // false: `text` says why not

  std::string with_unit() const { return known && *unit ? text + " " + unit : text; }
};

using Getter = Value (*)(const Card& card);

}  // namespace gpuwire::nvidia_smi
