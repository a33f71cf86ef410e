// The input is a client's NVML query: the ordinal of a function, then its arguments. The library below returns success
// for every call and writes nothing, so that every possible reply is sent.
#include <cstdlib>
#include <cstring>
#include <string_view>

#include "protocol/wire/limits.hpp"
#include "server/management/replay_support.hpp"
#include "server/replay/replay.hpp"
#include "test/fuzz/frame_fuzz.hpp"

using namespace gpuwire;

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  static int marker[2];
  using namespace gpuwire::nvml;
  const nvmlDevice devices[] = {reinterpret_cast<nvmlDevice>(&marker[0]), reinterpret_cast<nvmlDevice>(&marker[1])};
  uint16_t function = 0;
  if (size < 1 + sizeof function) return 0;
  std::memcpy(&function, data + 1, sizeof function);
  auto functions = nvml::query_functions();
  if (!functions[function % functions.size()]) return 0;
  nvml::Table library;
  library.missing = nvml::kSuccess;
  nvml::Arguments arguments({reinterpret_cast<const char*>(data + 1 + sizeof function), size - 1 - sizeof function},
                            devices);
  nvml::Values values;
  try {
    functions[function % functions.size()](library, arguments, values);
  } catch (const server::ProtocolFault& fault) {
    if (fault.reason.empty()) std::abort();
  }
  return 0;
}
