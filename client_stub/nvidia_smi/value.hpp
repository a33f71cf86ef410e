// One printed value of a device.
#pragma once

#include <string>

#include "client_stub/nvidia_smi/library.hpp"
#include "protocol/wire/terminal_text.hpp"

namespace gpuwire::nvidia_smi {

struct Value {
  wire::ForeignText text;
  // "MiB", or none.
  const char* unit = "";
  // False: `text` is the reason.
  bool known = true;

  std::string with_unit() const { return known && *unit ? text + " " + unit : text.str(); }
};

using Getter = Value (*)(const Card& card);

}  // namespace gpuwire::nvidia_smi
