// ByteChanges are the changed bytes of a range of memory: the form in which the two copies of a host region exchange
// writes. Unchanged bytes never travel, because the other side may have written them meanwhile.
#pragma once

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <span>
#include <vector>

#if defined(__x86_64__)
#include <immintrin.h>
#endif

#include "protocol/wire/limits.hpp"

namespace gpuwire::wire {

struct ByteChanges {
  uint64_t offset = 0;
  // From the first to the last changed byte; at most kRegionPieceBytes.
  std::vector<std::byte> bytes;
  // Bit i % 8 of byte i / 8: bytes[i] changed; empty: all bytes changed.
  std::vector<uint8_t> mask;
};

constexpr size_t change_mask_bytes(size_t bytes) { return (bytes + 7) / 8; }

// Returns a mask whose bit i is set if byte i of the word (little-endian in memory) is not zero.
constexpr uint8_t nonzero_bytes(uint64_t word) {
  // The multiplication by kGather moves bit 8 i to bit 56 + i.
  constexpr uint64_t kLow = 0x7f7f'7f7f'7f7f'7f7f, kGather = 0x0102'0408'1020'4080;
  uint64_t highs = (word | ((word & kLow) + kLow)) & ~kLow;
  return uint8_t((highs >> 7) * kGather >> 56);
}

// Fills the mask of changed bytes between `is` and `was`, both of `bytes` bytes. Returns true if all bytes have
// changed.
inline bool mark_changes(const std::byte* is, const std::byte* was, size_t bytes, uint8_t* mask) {
  bool all = true;
  size_t at = 0;
#if defined(__x86_64__)
  for (; bytes - at >= 16; at += 16) {
    const __m128i left = _mm_loadu_si128(reinterpret_cast<const __m128i*>(is + at));
    const __m128i right = _mm_loadu_si128(reinterpret_cast<const __m128i*>(was + at));
    const auto changed = uint16_t(~_mm_movemask_epi8(_mm_cmpeq_epi8(left, right)));
    std::memcpy(mask + at / 8, &changed, sizeof changed);
    all = all && changed == 0xffff;
  }
#endif
  for (; at < bytes; at += 8) {
    const size_t count = std::min<size_t>(8, bytes - at);
    uint64_t left = 0, right = 0;
    std::memcpy(&left, is + at, count);
    std::memcpy(&right, was + at, count);
    mask[at / 8] = nonzero_bytes(left ^ right);
    all = all && mask[at / 8] == 0xff >> (8 - count);
  }
  return all;
}

// Compares `memory` with `shadow`, updates the shadow and passes the differences to `visit`, in pieces. Other threads
// may write to the memory meanwhile: the next call finds a byte that changes again.
template <class Visit>
void take_changes(const std::byte* memory, std::span<std::byte> shadow, Visit&& visit) {
  // The unit of comparison.
  constexpr size_t kBlockBytes = 4096;
  static_assert(kRegionPieceBytes % kBlockBytes == 0);
  auto differs = [&](size_t at) {
    return std::memcmp(memory + at, shadow.data() + at, std::min(kBlockBytes, shadow.size() - at)) != 0;
  };
  for (size_t at = 0; at < shadow.size();) {
    if (!differs(at)) {
      at += kBlockBytes;
      continue;
    }
    size_t end = at + kBlockBytes;
    while (end < shadow.size() && end - at < kRegionPieceBytes && differs(end)) end += kBlockBytes;
    end = std::min(end, shadow.size());
    // From here on a copy is compared, which does not change.
    std::vector<std::byte> now(memory + at, memory + end);
    size_t first = 0, last = now.size();
    while (first < last && now[first] == shadow[at + first]) ++first;
    while (last > first && now[last - 1] == shadow[at + last - 1]) --last;
    if (first < last) {
      ByteChanges changes{.offset = at + first, .bytes = {}, .mask = {}};
      std::vector<uint8_t> mask(change_mask_bytes(last - first));
      bool all = mark_changes(now.data() + first, shadow.data() + at + first, last - first, mask.data());
      if (!all) changes.mask = std::move(mask);
      std::memcpy(shadow.data() + at, now.data(), now.size());
      now.resize(last);
      now.erase(now.begin(), now.begin() + ptrdiff_t(first));
      changes.bytes = std::move(now);
      visit(changes);
    }
    at = end;
  }
}

// Writes those of four bytes whose bits are set, and no other bytes, because the device or the program may be writing
// to the neighbouring bytes. The cases cover the low bytes of a number, which change most often.
inline void write_changed_of_four(std::byte* memory, const std::byte* bytes, unsigned bits) {
  switch (bits) {
    case 0b0000: return;
    case 0b0001: memory[0] = bytes[0]; return;
    case 0b0011: std::memcpy(memory, bytes, 2); return;
    case 0b0111: std::memcpy(memory, bytes, 2), memory[2] = bytes[2]; return;
    case 0b1100: std::memcpy(memory + 2, bytes + 2, 2); return;
    case 0b1111: std::memcpy(memory, bytes, 4); return;
    default:
      for (unsigned i = 0; i < 4; ++i) {
        if (bits >> i & 1) memory[i] = bytes[i];
      }
  }
}

// write_changed() for every processor. Starts with the byte `at`, a multiple of 8.
inline void write_changed_plainly(std::byte* memory, std::span<const std::byte> bytes, std::span<const uint8_t> mask,
                                  size_t at = 0) {
  for (; bytes.size() - at >= 8; at += 8) {
    const uint8_t bits = mask[at / 8];
    if (bits == 0xff) {
      std::memcpy(memory + at, bytes.data() + at, 8);
      continue;
    }
    write_changed_of_four(memory + at, bytes.data() + at, bits & 0xf);
    write_changed_of_four(memory + at + 4, bytes.data() + at + 4, bits >> 4);
  }
  for (; at < bytes.size(); ++at) {
    if (mask[at / 8] >> (at % 8) & 1) memory[at] = bytes[at];
  }
}

#if defined(__x86_64__)
inline bool has_masked_stores() noexcept {
  static const bool has = __builtin_cpu_supports("avx512bw");
  return has;
}

// Writes changed bytes 64 at a time on a processor with masked byte stores. Returns the number of handled bytes.
__attribute__((target("avx512bw"))) inline size_t write_changed_by_mask(std::byte* memory,
                                                                        std::span<const std::byte> bytes,
                                                                        std::span<const uint8_t> mask) {
  size_t at = 0;
  for (; bytes.size() - at >= 64; at += 64) {
    uint64_t bits = 0;
    std::memcpy(&bits, mask.data() + at / 8, sizeof bits);
    if (bits) _mm512_mask_storeu_epi8(memory + at, bits, _mm512_loadu_si512(bytes.data() + at));
  }
  return at;
}
#endif

// Writes the changed bytes of `bytes`. The mask is empty or has change_mask_bytes(bytes.size()) bytes.
inline void write_changed(std::byte* memory, std::span<const std::byte> bytes, std::span<const uint8_t> mask) {
  if (mask.empty()) {
    if (!bytes.empty()) std::memcpy(memory, bytes.data(), bytes.size());
    return;
  }
  size_t done = 0;
#if defined(__x86_64__)
  if (has_masked_stores()) done = write_changed_by_mask(memory, bytes, mask);
#endif
  write_changed_plainly(memory, bytes, mask, done);
}

// Applies the other side's changes to memory and shadow. Returns false, and writes nothing, if they do not fit.
inline bool apply_changes(std::byte* memory, std::span<std::byte> shadow, uint64_t offset,
                          std::span<const std::byte> bytes, std::span<const uint8_t> mask) {
  if (offset > shadow.size() || bytes.size() > shadow.size() - offset) return false;
  if (!mask.empty() && mask.size() != change_mask_bytes(bytes.size())) return false;
  write_changed(memory + offset, bytes, mask);
  write_changed(shadow.data() + offset, bytes, mask);
  return true;
}

}  // namespace gpuwire::wire
