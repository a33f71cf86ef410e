// Parses PTX text to a Module.
#pragma once

#include <string>
#include <string_view>

#include <tl/expected.hpp>

#include "server/software_device/ptx/module.hpp"

namespace gpuwire::software_device::ptx {

struct ParseError {
  bool unsupported = false;  // not supported by this device, but possibly valid PTX; false: the text is invalid
  uint32_t line = 0;
  std::string message;
};

// Parses one PTX text. The module points into `text`, which must outlive it.
tl::expected<Module, ParseError> parse(std::string_view text);

}  // namespace gpuwire::software_device::ptx
