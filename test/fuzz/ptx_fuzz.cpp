// The input is PTX text for the software device's parser.
#include <string>

#include "server/software_device/ptx/parser.hpp"
#include "test/fuzz/frame_fuzz.hpp"

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  if (size == 0) return 0;
  const std::string text(reinterpret_cast<const char*>(data + 1), size - 1);
  static_cast<void>(gpuwire::software_device::ptx::parse(text));
  return 0;
}
