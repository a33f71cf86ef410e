// SHA-256, by which program images are named.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <span>
#include <string>

namespace gpuwire::server {

using Digest = std::array<uint8_t, 32>;

Digest sha256(std::span<const std::byte> bytes);
std::string hex(const Digest& digest);

}  // namespace gpuwire::server
