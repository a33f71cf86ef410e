// The secret under which servers cache a user's program images.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <optional>
#include <string>

#include "protocol/wire/limits.hpp"

namespace gpuwire::client {

using CacheKey = std::array<uint8_t, wire::kCacheKeyBytes>;

// Returns the path of the key: GPUWIRE_CACHE_KEY_FILE, or gpuwire/cache_key in $XDG_STATE_HOME or ~/.local/state. Empty
// for "none", or without such a folder.
std::string cache_key_file();

// Reads the key, and makes a random one if there is no file. Concurrent processes get the same key. Empty if the key
// cannot be stored, or if the file is not the user's own, is readable by others, or has another size: the client then
// sends images each time.
std::optional<CacheKey> cache_key(const std::string& file);

}  // namespace gpuwire::client
