// The secret under which a user's program images are kept at servers.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <optional>
#include <string>

#include "protocol/wire/limits.hpp"

namespace gpuwire::client {

using CacheKey = std::array<uint8_t, wire::kCacheKeyBytes>;

// The path of the key: GPUWIRE_CACHE_KEY_FILE, or gpuwire/cache_key in $XDG_STATE_HOME or ~/.local/state. Empty if
// there is no such folder, or with "none".
std::string cache_key_file();

// Reads the key; makes a random one when there is no file. Empty when there is no place for it, or when the file is not
// the user's own, may be read by others, or has another size: images are then sent each time. Processes that start at
// the same time get the same key.
std::optional<CacheKey> cache_key(const std::string& file);

}  // namespace gpuwire::client
