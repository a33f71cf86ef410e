// Amounts as people write them.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

#include <tl/expected.hpp>

namespace gpuwire::server {

// "20GiB", "512 MiB", "1.5GiB", "4096": bytes. Units: B, KiB, MiB, GiB, TiB; no GB, which some take for 1000. The error says what is wrong.
tl::expected<uint64_t, std::string> parse_bytes(std::string_view text);
// "30s", "500ms", "2h", "1d", "5min": milliseconds.
tl::expected<uint64_t, std::string> parse_duration_ms(std::string_view text);

// Which of `known` the writer of `word` may have meant; "": none is near.
std::string_view nearest_word(std::string_view word, const std::vector<std::string_view>& known);

}  // namespace gpuwire::server
