// Sums, products and multiples of bytes that saturate at UINT64_MAX, a size that no reservation can get.
#pragma once

#include <cstdint>

namespace gpuwire::server {

inline uint64_t sum(uint64_t a, uint64_t b) { return a > UINT64_MAX - b ? UINT64_MAX : a + b; }
inline uint64_t product(uint64_t a, uint64_t b) {
  uint64_t bytes = 0;
  return __builtin_mul_overflow(a, b, &bytes) ? UINT64_MAX : bytes;
}

inline uint64_t round_up(uint64_t bytes, uint64_t unit) {
  return bytes > UINT64_MAX - unit ? UINT64_MAX : (bytes + unit - 1) / unit * unit;
}

}  // namespace gpuwire::server
