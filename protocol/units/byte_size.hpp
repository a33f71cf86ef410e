// Parses sizes as people write them.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>

#include <tl/expected.hpp>

namespace gpuwire::units {

// Converts "20GiB", "2.5GiB", "512 MiB" or "20GB" to bytes. KiB to TiB are powers of 1024, KB to TB powers of 1000. A
// number without a unit, except 0, is refused, because some people would mean bytes and others GiB. The error describes
// the mistake and names the units.
tl::expected<uint64_t, std::string> parse_byte_size(std::string_view text);

}  // namespace gpuwire::units
