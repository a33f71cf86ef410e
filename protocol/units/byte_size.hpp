// Sizes as people write them.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>

#include <tl/expected.hpp>

namespace gpuwire::units {

// "20GiB", "2.5GiB", "512 MiB", "20GB": bytes. KiB to TiB count by 1024, KB to TB by 1000. A number without a unit,
// except 0, is refused: some people would mean bytes by it, some GiB. The error describes the mistake, and names the
// units.
tl::expected<uint64_t, std::string> parse_byte_size(std::string_view text);

}  // namespace gpuwire::units
