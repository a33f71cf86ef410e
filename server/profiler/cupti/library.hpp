// NVIDIA's CUPTI, opened by name when a session asks for a profile.
#pragma once

#include <string>
#include <vector>

#include <tl/expected.hpp>

#include "server/profiler/cupti/interface.hpp"

namespace gpuwire::server::cupti {

// The setting `cupti`, but a path.
inline constexpr const char* kAuto = "auto";
inline constexpr const char* kOff = "off";

struct Library {
  Functions call;
  std::string name;  // "CUPTI 13.0"
};

// Where it is looked for: names for the loader's path, then the toolkit's folders. A version that is newer than the
// driver is left out: it would refuse.
std::vector<std::string> candidates(int driver_version);

// "CUPTI 12.4"; empty: it is no version whose records are known.
std::string name_of(uint32_t api_version);

// The first of them that there is. It stays open as long as the process: CUPTI has threads of its own. The error says
// why not, in a line.
tl::expected<Library, std::string> open(const std::vector<std::string>& paths);

// CUPTI's name of a result.
std::string describe(const Functions& call, Result result);

}  // namespace gpuwire::server::cupti
