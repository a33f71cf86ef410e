// Durations as people write them (sizes: protocol/units), and words that are almost right.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

#include <tl/expected.hpp>

namespace gpuwire::server {

// "30s", "500ms", "2h", "1d", "5min": milliseconds.
tl::expected<uint64_t, std::string> parse_duration_ms(std::string_view text);

// Which of `known` the writer of `word` may have meant; "": none is near.
std::string_view nearest_word(std::string_view word, const std::vector<std::string_view>& known);

}  // namespace gpuwire::server
