// Values as readable texts.
#pragma once

#include <cstdint>
#include <string>

namespace gpuwire::server::web {

std::string size_words(uint64_t bytes);    // "512 MiB", "12.0 GiB"
std::string percent_words(double share);   // "37.5 %"
std::string time_words(double seconds);    // "42 s", "5 min", "3 h 05 min", "2 d 03 h"
std::string gpu_time_words(double gpu_s);  // "0.4 s", "4.2 min", "12.42 h"
std::string date_words(double unix_s);     // "2026-11-21 17:00 UTC"

}  // namespace gpuwire::server::web
