// NVIDIA's CUPTI, opened by name when a session asks for a profile.
#pragma once

#include <string>
#include <vector>

#include <tl/expected.hpp>

#include "server/profiler/cupti/interface.hpp"

namespace gpuwire::server::cupti {

// The values of the setting `cupti` other than a path.
inline constexpr const char* kAuto = "auto";
inline constexpr const char* kOff = "off";

struct Library {
  Functions call;
  // "CUPTI 13.0".
  std::string name;
};

// Returns the searched names: those for the loader's path, then the toolkit's folders; without versions that are newer
// than the driver, which would refuse.
std::vector<std::string> candidates(int driver_version);

// Returns for example "CUPTI 12.4"; empty: the records of this version are unknown.
std::string name_of(uint32_t api_version);

// Opens the first one that exists. It stays open until the process ends, because CUPTI has its own threads. The error
// gives the reason, in a line.
tl::expected<Library, std::string> open(const std::vector<std::string>& paths);

// CUPTI's name of a result.
std::string describe(const Functions& call, Result result);

}  // namespace gpuwire::server::cupti
