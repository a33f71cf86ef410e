// Random changes of an input, for compilers without libFuzzer.
#pragma once

#include <cstddef>
#include <cstdint>
#include <random>
#include <vector>

namespace gpuwire::test {

inline constexpr size_t kFuzzInputBytesMax = 64 * 1024;

// A changed copy of `from`, sometimes with a part of `other` in it.
std::vector<uint8_t> mutate(const std::vector<uint8_t>& from, const std::vector<uint8_t>& other,
                            std::mt19937_64& random);

}  // namespace gpuwire::test
