// PTX text to Module.
#pragma once

#include <string>
#include <string_view>

#include <tl/expected.hpp>

#include "server/software_device/ptx/module.hpp"

namespace gpuwire::software_device::ptx {

struct ParseError {
  bool unsupported = false;  // known to PTX, perhaps, but not to this device; else the text is wrong
  uint32_t line = 0;
  std::string message;
};

// Parses one PTX text. The module points into `text`, which has to live as long.
tl::expected<Module, ParseError> parse(std::string_view text);

}  // namespace gpuwire::software_device::ptx
