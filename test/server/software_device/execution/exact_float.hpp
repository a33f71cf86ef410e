// Floating-point numbers as integers: the reference for the device's arithmetic. No operation here uses the processor's
// floating-point unit, so neither its rounding modes nor compiler optimisations affect the results.
#pragma once

#include <bit>
#include <cstdint>

namespace gpuwire::software_device::test {

__extension__ using Wide = __int128;
__extension__ using UnsignedWide = unsigned __int128;

// A binary format: its bits, those of its fraction, and the NaN that its operations give.
struct FloatFormat {
  int bits;
  int fraction_bits;

  int exponent_bits() const { return bits - fraction_bits - 1; }
  int bias() const { return (1 << (exponent_bits() - 1)) - 1; }
  uint64_t sign() const { return uint64_t{1} << (bits - 1); }
  uint64_t infinity() const { return ((uint64_t{1} << exponent_bits()) - 1) << fraction_bits; }
  uint64_t fraction() const { return (uint64_t{1} << fraction_bits) - 1; }
  uint64_t nan() const { return sign() - 1; }
  bool is_nan(uint64_t v) const { return (v & ~sign()) > infinity(); }
  bool is_infinite(uint64_t v) const { return (v & ~sign()) == infinity(); }
  bool is_zero(uint64_t v) const { return (v & ~sign()) == 0; }
  bool is_subnormal(uint64_t v) const { return (v & infinity()) == 0 && !is_zero(v); }
  uint64_t flushed(uint64_t v) const { return is_subnormal(v) ? v & sign() : v; }
  uint64_t one() const { return static_cast<uint64_t>(bias()) << fraction_bits; }
};

inline constexpr FloatFormat kF16{16, 10}, kBf16{16, 7}, kF32{32, 23}, kF64{64, 52};

enum class Round { nearest_even, toward_zero, down, up };

// (-1)^negative * (magnitude + a bit of less than one, if sticky) * 2^exponent
struct Exact {
  bool negative = false;
  UnsignedWide magnitude = 0;
  int exponent = 0;
  bool sticky = false;

  bool zero() const { return magnitude == 0 && !sticky; }
};

inline int width_of(UnsignedWide v) {
  const auto high = static_cast<uint64_t>(v >> 64);
  return high != 0 ? 128 - std::countl_zero(high) : 64 - std::countl_zero(static_cast<uint64_t>(v));
}

// Returns a finite number of a format.
inline Exact exact(const FloatFormat& f, uint64_t v) {
  const uint64_t biased = (v & f.infinity()) >> f.fraction_bits;
  return {(v & f.sign()) != 0, (v & f.fraction()) | (biased != 0 ? uint64_t{1} << f.fraction_bits : 0),
          static_cast<int>(biased != 0 ? biased : 1) - f.bias() - f.fraction_bits, false};
}

inline Exact exact_integer(Wide v) { return {v < 0, static_cast<UnsignedWide>(v < 0 ? -v : v), 0, false}; }

// Drops the lowest `count` bits of the magnitude and notes whether any was set.
inline Exact shifted_right(Exact v, int count) {
  if (count <= 0) return v;
  v.exponent += count;
  if (count >= 128) {
    v.sticky |= v.magnitude != 0;
    v.magnitude = 0;
    return v;
  }
  v.sticky |= (v.magnitude & ((UnsignedWide{1} << count) - 1)) != 0;
  v.magnitude >>= count;
  return v;
}

// Rounds to a multiple of 2^exponent. The result has no sticky bit.
inline Exact rounded_at(Exact v, int exponent, Round mode) {
  const int drop = exponent - v.exponent;
  if (drop <= 0) return v;                        // only called with exact values then
  const Exact half = shifted_right(v, drop - 1);  // its lowest bit is the first that is dropped
  const bool first = (half.magnitude & 1) != 0, inexact = first || half.sticky;
  Exact kept{v.negative, half.magnitude >> 1, exponent, false};
  const bool odd = (kept.magnitude & 1) != 0;
  bool away = false;
  switch (mode) {
    case Round::nearest_even: away = first && (half.sticky || odd); break;
    case Round::toward_zero: break;
    case Round::down: away = inexact && v.negative; break;
    case Round::up: away = inexact && !v.negative; break;
  }
  kept.magnitude += away;
  return kept;
}

// Returns the rounded number in the format. A zero keeps its sign; if operands cancel, the caller decides the sign.
inline uint64_t encode(const FloatFormat& f, Exact v, Round mode) {
  const uint64_t sign = v.negative ? f.sign() : 0;
  if (v.zero()) return sign;
  const int lowest = 1 - f.bias() - f.fraction_bits;
  int top = v.exponent + width_of(v.magnitude);
  if (v.magnitude == 0) top = v.exponent;
  const int wanted = top - (f.fraction_bits + 1) < lowest ? lowest : top - (f.fraction_bits + 1);
  if (v.exponent >= wanted) {
    v.magnitude <<= v.exponent - wanted;
    v.exponent = wanted;
  } else {
    v = rounded_at(v, wanted, mode);
  }
  if (width_of(v.magnitude) > f.fraction_bits + 1) {
    v.magnitude >>= 1;  // the magnitude is a power of two by now
    ++v.exponent;
  }
  if (width_of(v.magnitude) <= f.fraction_bits) return sign | static_cast<uint64_t>(v.magnitude);  // subnormal, or zero
  const int biased = v.exponent + f.bias() + f.fraction_bits;
  if (biased >= (1 << f.exponent_bits()) - 1) {
    const bool to_largest =
        mode == Round::toward_zero || (mode == Round::down && !v.negative) || (mode == Round::up && v.negative);
    return sign | (to_largest ? f.infinity() - 1 : f.infinity());
  }
  return sign | static_cast<uint64_t>(biased) << f.fraction_bits | (static_cast<uint64_t>(v.magnitude) & f.fraction());
}

// Returns the number with its highest bit in place 125, so that sums of two lose nothing but the sticky bit.
inline Exact normalized(Exact v) {
  if (v.magnitude == 0) return v;
  const int shift = 126 - width_of(v.magnitude);
  v.magnitude <<= shift;
  v.exponent -= shift;
  return v;
}

// Precondition: both have no sticky bit and at most 106 bits.
inline Exact sum_of(Exact a, Exact b) {
  if (a.zero()) return b;
  if (b.zero()) return a;
  if (a.exponent + width_of(a.magnitude) < b.exponent + width_of(b.magnitude)) std::swap(a, b);
  a = normalized(a);
  if (b.exponent >= a.exponent) {
    b.magnitude <<= b.exponent - a.exponent;
    b.exponent = a.exponent;
  } else {
    b = shifted_right(b, a.exponent - b.exponent);
  }
  if (a.negative == b.negative) return {a.negative, a.magnitude + b.magnitude, a.exponent, b.sticky};
  // b's lost bits are subtracted from a's lowest bit; bits are lost only if the difference stays large.
  UnsignedWide low = b.magnitude + (b.sticky ? 1 : 0);
  if (a.magnitude >= low) return {a.negative, a.magnitude - low, a.exponent, b.sticky};
  return {b.negative, low - a.magnitude, a.exponent, false};
}

inline Exact product_of(const Exact& a, const Exact& b) {
  return {a.negative != b.negative, a.magnitude * b.magnitude, a.exponent + b.exponent, false};
}

// Precondition: b is not zero.
inline Exact quotient_of(const Exact& a, const Exact& b) {
  const Exact n = normalized(a);
  return {a.negative != b.negative, n.magnitude / b.magnitude, n.exponent - b.exponent, n.magnitude % b.magnitude != 0};
}

// Precondition: a is not negative.
inline Exact root_of(Exact a) {
  a = normalized(a);
  if ((a.exponent & 1) != 0) {
    a.magnitude >>= 1;  // at least 19 of its lowest bits are zero
    ++a.exponent;
  }
  UnsignedWide root = 0;
  for (int bit = 63; bit >= 0; --bit) {
    const UnsignedWide tried = root | UnsignedWide{1} << bit;
    if (tried * tried <= a.magnitude) root = tried;
  }
  return {false, root, a.exponent / 2, root * root != a.magnitude};
}

// Returns the value, rounded to a long double.
inline long double approximately(const FloatFormat& f, uint64_t v) {
  const Exact e = exact(f, v);
  const long double magnitude =
      __builtin_ldexpl(static_cast<long double>(static_cast<uint64_t>(e.magnitude)), e.exponent);
  return e.negative ? -magnitude : magnitude;
}

}  // namespace gpuwire::software_device::test
