// The most expensive part of BLAKE3: the compression function on W inputs in parallel. One source file for each width
// includes this header and is compiled for a processor of that width. So nothing here may be shared with other source
// files, and no function of the standard library that could be shared is used. Section numbers refer to the BLAKE3
// paper.
#pragma once

#include <cstddef>
#include <cstdint>

namespace gpuwire::digest {

inline constexpr size_t kBlockBytes = 64, kPartBytes = 1024;  // the paper calls a part a chunk

// Flags (2.2).
inline constexpr uint32_t kPartStart = 1, kPartEnd = 2, kParent = 4, kRoot = 8, kKeyed = 16;

// Contiguous inputs of `blocks` blocks each. The blocks of an input are compressed one after the other, beginning with
// the key (2.4, 2.5).
struct Inputs {
  const std::byte* data;
  // The number of blocks of each input.
  size_t blocks;
  // Counter of the first input. `counts`: the counter grows by one for each input.
  uint64_t counter;
  bool counts;
  // 8 words.
  const uint32_t* key;
  uint32_t flags, first_flags, last_flags;
};

// Writes the chaining values of as many inputs as the kernel is wide, 32 bytes each.
using Kernel = void (*)(const Inputs& inputs, std::byte* out) noexcept;
void compress_4(const Inputs& inputs, std::byte* out) noexcept;
void compress_8(const Inputs& inputs, std::byte* out) noexcept;
void compress_16(const Inputs& inputs, std::byte* out) noexcept;

namespace {

constexpr uint32_t kInitial[8] = {0x6A09E667, 0xBB67AE85, 0x3C6EF372, 0xA54FF53A,
                                  0x510E527F, 0x9B05688C, 0x1F83D9AB, 0x5BE0CD19};
// The order of the message's words in each of the seven rounds (2.2, table 2, applied repeatedly).
constexpr uint8_t kSchedule[7][16] = {
    {0, 1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12, 13, 14, 15}, {2, 6, 3, 10, 7, 0, 4, 13, 1, 11, 12, 5, 9, 14, 15, 8},
    {3, 4, 10, 12, 13, 2, 7, 14, 6, 5, 9, 0, 11, 15, 8, 1}, {10, 7, 12, 9, 14, 3, 13, 15, 4, 0, 11, 2, 5, 8, 1, 6},
    {12, 13, 9, 11, 15, 10, 14, 8, 7, 2, 5, 3, 0, 1, 6, 4}, {9, 14, 11, 5, 8, 12, 15, 1, 13, 3, 0, 10, 2, 6, 4, 7},
    {11, 15, 5, 0, 1, 9, 8, 6, 14, 10, 2, 12, 3, 4, 7, 13}};

template <int count, class Words>
[[gnu::always_inline]] inline Words rotated(Words x) noexcept {
  return (x >> count) | (x << (32 - count));
}

template <class Words>
[[gnu::always_inline]] inline void mix(Words& a, Words& b, Words& c, Words& d, Words x, Words y) noexcept {
  a = a + b + x, d = rotated<16>(d ^ a), c = c + d, b = rotated<12>(b ^ c);
  a = a + b + y, d = rotated<8>(d ^ a), c = c + d, b = rotated<7>(b ^ c);
}

// Returns the state `v` after seven rounds (2.2).
template <class Words>
[[gnu::always_inline]] inline void rounds(Words (&v)[16], const Words (&m)[16]) noexcept {
#pragma GCC unroll 7
  for (int round = 0; round < 7; ++round) {
    const uint8_t* s = kSchedule[round];
    mix(v[0], v[4], v[8], v[12], m[s[0]], m[s[1]]), mix(v[1], v[5], v[9], v[13], m[s[2]], m[s[3]]);
    mix(v[2], v[6], v[10], v[14], m[s[4]], m[s[5]]), mix(v[3], v[7], v[11], v[15], m[s[6]], m[s[7]]);
    mix(v[0], v[5], v[10], v[15], m[s[8]], m[s[9]]), mix(v[1], v[6], v[11], v[12], m[s[10]], m[s[11]]);
    mix(v[2], v[7], v[8], v[13], m[s[12]], m[s[13]]), mix(v[3], v[4], v[9], v[14], m[s[14]], m[s[15]]);
  }
}

// Transposes rows to columns: pairs of rows exchange halves, then quarters, and so on.
template <int W, class Words>
[[gnu::always_inline]] inline void transpose(Words (&rows)[W]) noexcept {
#pragma GCC unroll 4
  for (int step = 1; step < W; step *= 2) {
    Words low, high;
    for (int lane = 0; lane < W; ++lane) {
      low[lane] = uint32_t(lane & step ? lane - step + W : lane);
      high[lane] = uint32_t(lane & step ? lane + W : lane + step);
    }
#pragma GCC unroll 16
    for (int row = 0; row < W; ++row) {
      if (row & step) continue;
      Words a = rows[row], b = rows[row + step];
      rows[row] = __builtin_shuffle(a, b, low);
      rows[row + step] = __builtin_shuffle(a, b, high);
    }
  }
}

template <int W>
struct Vector;
template <>
struct Vector<4> {
  typedef uint32_t Words __attribute__((vector_size(16)));
};
template <>
struct Vector<8> {
  typedef uint32_t Words __attribute__((vector_size(32)));
};
template <>
struct Vector<16> {
  typedef uint32_t Words __attribute__((vector_size(64)));
};

template <int W>
[[gnu::always_inline]] inline void compress(const Inputs& in, std::byte* out) noexcept {
  using Words = typename Vector<W>::Words;
  Words h[8], counter_low, counter_high;
  for (int i = 0; i < 8; ++i) h[i] = Words{} + in.key[i];
  for (int lane = 0; lane < W; ++lane) {
    uint64_t counter = in.counter + (in.counts ? uint64_t(lane) : 0);
    counter_low[lane] = uint32_t(counter), counter_high[lane] = uint32_t(counter >> 32);
  }
  for (size_t block = 0; block < in.blocks; ++block) {
    Words m[16];
#pragma GCC unroll 4
    for (int part = 0; part < 16; part += W) {
      Words rows[W];
#pragma GCC unroll 16
      for (int row = 0; row < W; ++row)
        __builtin_memcpy(&rows[row], in.data + (size_t(row) * in.blocks + block) * kBlockBytes + size_t(part) * 4,
                         sizeof(Words));
      transpose<W>(rows);
#pragma GCC unroll 16
      for (int row = 0; row < W; ++row) m[part + row] = rows[row];
    }
    uint32_t flags = in.flags | (block == 0 ? in.first_flags : 0) | (block + 1 == in.blocks ? in.last_flags : 0);
    Words v[16] = {h[0], h[1], h[2], h[3], h[4], h[5], h[6], h[7]};
    for (int i = 0; i < 4; ++i) v[8 + i] = Words{} + kInitial[i];
    v[12] = counter_low, v[13] = counter_high, v[14] = Words{} + uint32_t(kBlockBytes), v[15] = Words{} + flags;
    rounds(v, m);
    for (int i = 0; i < 8; ++i) h[i] = v[i] ^ v[i + 8];
  }
  // On little-endian machines, words are bytes in the output's order (2.1).
  for (int lane = 0; lane < W; ++lane)
    for (int i = 0; i < 8; ++i) {
      uint32_t word = h[i][lane];
      __builtin_memcpy(out + size_t(lane) * 32 + size_t(i) * 4, &word, 4);
    }
}

}  // namespace
}  // namespace gpuwire::digest
