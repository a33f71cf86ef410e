// f16 and bf16 as bits, flushing of subnormals, canonical NaNs.
//
// Arithmetic on the 16-bit formats is done in double and rounded once. Exact products and sums have at most 53
// significant bits, or have so many more than the result that the second rounding is harmless (S. Figueroa, "When is
// double rounding innocuous?", 1995). fma, for which neither holds, rounds to odd in between (S. Boldo, G. Melquiond,
// "Emulation of FMA and correctly rounded sums", 2008).
#pragma once

#include <bit>
#include <cmath>
#include <cstdint>

namespace gpuwire::software_device {

enum class Rounding : uint8_t { nearest_even, toward_zero, down, up, nearest_away };

inline constexpr uint32_t kNanBits32 = 0x7fffffff;  // the NaN of a GPU's f32 operations (PTX ISA, 9.7.3)
inline constexpr uint16_t kNanBits16 = 0x7fff;

inline float canonical(float value) { return value == value ? value : std::bit_cast<float>(kNanBits32); }
inline double canonical(double value) { return value; }

// .ftz: subnormals become zeros of the same sign.
inline float flush(float value) {
  uint32_t bits = std::bit_cast<uint32_t>(value);
  return (bits & 0x7f800000) == 0 ? std::bit_cast<float>(bits & 0x80000000) : value;
}
inline uint16_t flush_half(uint16_t bits) { return (bits & 0x7c00) == 0 ? bits & 0x8000 : bits; }

// .sat: clamps to [0, 1], and NaN to +0.
template <class T>
inline T saturate(T value) {
  return value > T(0) ? (value < T(1) ? value : T(1)) : T(0);
}

inline float half_to_float(uint16_t bits) {
  uint32_t sign = static_cast<uint32_t>(bits & 0x8000) << 16;
  uint32_t rest = bits & 0x7fff;
  if (rest >= 0x7c00) return std::bit_cast<float>(sign | 0x7f800000 | (rest & 0x3ff) << 13);
  if (rest < 0x0400) return std::bit_cast<float>(std::bit_cast<uint32_t>(static_cast<float>(rest) * 0x1p-24f) | sign);
  return std::bit_cast<float>(sign | ((rest << 13) + 0x38000000));
}

inline float brain_to_float(uint16_t bits) { return std::bit_cast<float>(static_cast<uint32_t>(bits) << 16); }

// A 16-bit binary format with `Mantissa` stored fraction bits.
template <int Mantissa>
inline uint16_t encode_small(double value, Rounding rounding) {
  constexpr int kExponentBits = 15 - Mantissa;
  constexpr int kBias = (1 << (kExponentBits - 1)) - 1;
  constexpr int kLowest = 1 - kBias;
  constexpr uint32_t kInfinity = ((1u << kExponentBits) - 1) << Mantissa;
  uint64_t bits = std::bit_cast<uint64_t>(value);
  uint32_t sign = static_cast<uint32_t>(bits >> 48) & 0x8000;
  uint64_t fraction = bits & ((uint64_t{1} << 52) - 1);
  int exponent = static_cast<int>(bits >> 52 & 0x7ff);
  if (exponent == 0x7ff) return fraction != 0 ? kNanBits16 : static_cast<uint16_t>(sign | kInfinity);
  if (exponent == 0) exponent = 1;
  else fraction |= uint64_t{1} << 52;
  exponent -= 1023;
  int place = exponent < kLowest ? kLowest : exponent;
  int shift = 52 - Mantissa + (place - exponent);
  if (shift > 62) {
    fraction = fraction != 0;
    shift = 62;
  }
  uint64_t kept = fraction >> shift, rest = fraction & ((uint64_t{1} << shift) - 1), half = uint64_t{1} << (shift - 1);
  bool up = false;
  switch (rounding) {
    case Rounding::nearest_even: up = rest > half || (rest == half && (kept & 1)); break;
    case Rounding::nearest_away: up = rest >= half; break;
    case Rounding::toward_zero: break;
    case Rounding::down: up = rest != 0 && sign != 0; break;
    case Rounding::up: up = rest != 0 && sign == 0; break;
  }
  kept += up;
  uint64_t result = (static_cast<uint64_t>(place - kLowest) << Mantissa) + kept;
  if (result >= kInfinity) {
    bool finite = rounding == Rounding::toward_zero || (rounding == Rounding::down && sign == 0) ||
                  (rounding == Rounding::up && sign != 0);
    result = finite ? kInfinity - 1 : kInfinity;
  }
  return static_cast<uint16_t>(sign | result);
}

// The two formats with one interface.
struct HalfFormat {
  static double decode(uint16_t bits) { return half_to_float(bits); }
  static uint16_t encode(double value, Rounding rounding = Rounding::nearest_even) {
    return encode_small<10>(value, rounding);
  }
  static uint16_t flushed(uint16_t bits) { return flush_half(bits); }
  static constexpr uint16_t kOne = 0x3c00;
};
struct BrainFormat {
  static double decode(uint16_t bits) { return brain_to_float(bits); }
  static uint16_t encode(double value, Rounding rounding = Rounding::nearest_even) {
    return encode_small<7>(value, rounding);
  }
  static uint16_t flushed(uint16_t bits) { return (bits & 0x7f80) == 0 ? bits & 0x8000 : bits; }
  static constexpr uint16_t kOne = 0x3f80;
};

// Returns a * b + c rounded to odd, so that a second rounding to fewer bits is correct. Precondition: the product is
// exact.
inline double fma_to_odd(double a, double b, double c) {
  double product = a * b;
  double sum = product + c;
  if (!std::isfinite(sum)) return sum;
  double part = sum - product;
  double error = (product - (sum - part)) + (c - part);
  uint64_t bits = std::bit_cast<uint64_t>(sum);
  if (error != 0 && (bits & 1) == 0) {
    // Moves toward the error: away from zero if both have the same sign.
    bool away = (error > 0) == (sum > 0);
    bits += away ? 1 : ~uint64_t{0};
  }
  return std::bit_cast<double>(bits);
}

}  // namespace gpuwire::software_device
