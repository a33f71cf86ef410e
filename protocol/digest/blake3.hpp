// BLAKE3 (O'Connor, Aumasson, Neves, Wilcox-O'Hearn, 2020): a cryptographic digest whose tree structure lets vector
// instructions process many parts of the input in parallel, so that it is as fast as a network.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <span>

namespace gpuwire::digest {

inline constexpr size_t kDigestBytes = 32;
using Digest = std::array<uint8_t, kDigestBytes>;
using Key = std::array<uint8_t, 32>;

// The number of parts of the input that a processor hashes in parallel.
enum class Lanes : uint8_t { four, eight, sixteen };
// Returns the maximum for this processor.
Lanes lanes_here() noexcept;

// The longest input.
inline constexpr size_t kInputBytesMax = 1u << 20;

// Returns the hash of at most kInputBytesMax bytes, or the keyed hash. Without the key, nobody can find the input of a
// digest or two inputs with the same digest. Thread: any. Allocates nothing.
Digest blake3(std::span<const std::byte> input, const Key* key = nullptr, Lanes lanes = lanes_here()) noexcept;

}  // namespace gpuwire::digest
