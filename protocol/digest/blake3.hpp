// BLAKE3 (O'Connor, Aumasson, Neves, Wilcox-O'Hearn, 2020): a cryptographic digest whose tree lets a processor's
// vectors work on many parts of the input at once, so that it keeps up with a network.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <span>

namespace gpuwire::digest {

inline constexpr size_t kDigestBytes = 32;
using Digest = std::array<uint8_t, kDigestBytes>;
using Key = std::array<uint8_t, 32>;

// How many parts of the input a processor works on at once.
enum class Lanes : uint8_t { four, eight, sixteen };
// The most that this processor can.
Lanes lanes_here() noexcept;

// The longest input.
inline constexpr size_t kInputBytesMax = 1u << 20;

// The hash of at most kInputBytesMax bytes; with a key, the keyed hash: without the key nobody can find the input of a
// digest, or two inputs with the same digest. Any thread; allocates nothing.
Digest blake3(std::span<const std::byte> input, const Key* key = nullptr, Lanes lanes = lanes_here()) noexcept;

}  // namespace gpuwire::digest
