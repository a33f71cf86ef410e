// Which bytes of a stretch of memory have changed: how the two copies of a host region are told of each other's writes.
// A byte that did not change never travels, because the other side may have written it meanwhile.
#pragma once

#include <algorithm>
#include <bit>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <span>
#include <vector>

#include "protocol/wire/limits.hpp"

namespace gpuwire::wire {

struct ByteChanges {
  uint64_t offset = 0;
  std::vector<std::byte> bytes;  // from the first to the last that changed; at most kRegionPieceBytes
  std::vector<uint8_t> mask;     // bit i % 8 of byte i / 8: bytes[i] changed; empty: all of them did
};

constexpr size_t change_mask_bytes(size_t bytes) { return (bytes + 7) / 8; }

// Bit i: byte i of the word (as it lies in memory, little-endian) is not zero.
constexpr uint8_t nonzero_bytes(uint64_t word) {
  constexpr uint64_t kLow = 0x7f7f'7f7f'7f7f'7f7f, kGather = 0x0102'0408'1020'4080;  // moves bit 8 i to bit 56 + i
  uint64_t highs = (word | ((word & kLow) + kLow)) & ~kLow;
  return uint8_t((highs >> 7) * kGather >> 56);
}

// Compares `memory` with `shadow`, brings the shadow up to date and shows the differences to `visit`, in pieces. The
// memory may be written to meanwhile: a byte that changes again is found the next time.
template <class Visit>
void take_changes(const std::byte* memory, std::span<std::byte> shadow, Visit&& visit) {
  constexpr size_t kBlockBytes = 4096;  // what is compared at once
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
    // From here on a copy is looked at, which holds still.
    std::vector<std::byte> now(memory + at, memory + end);
    size_t first = 0, last = now.size();
    while (first < last && now[first] == shadow[at + first]) ++first;
    while (last > first && now[last - 1] == shadow[at + last - 1]) --last;
    if (first < last) {
      ByteChanges changes{at + first, {now.begin() + long(first), now.begin() + long(last)}, {}};
      std::vector<uint8_t> mask(change_mask_bytes(changes.bytes.size()));
      size_t changed = 0;
      for (size_t i = 0; i < changes.bytes.size(); i += 8) {
        size_t count = std::min<size_t>(8, changes.bytes.size() - i);
        uint64_t is = 0, was = 0;
        std::memcpy(&is, &changes.bytes[i], count);
        std::memcpy(&was, &shadow[changes.offset + i], count);
        mask[i / 8] = nonzero_bytes(is ^ was);
        changed += size_t(std::popcount(mask[i / 8]));
      }
      if (changed < changes.bytes.size()) changes.mask = std::move(mask);
      std::memcpy(shadow.data() + at, now.data(), now.size());
      visit(changes);
    }
    at = end;
  }
}

// Writes those of `bytes` that changed. The mask is empty or has change_mask_bytes(bytes.size()) bytes.
inline void write_changed(std::byte* memory, std::span<const std::byte> bytes, std::span<const uint8_t> mask) {
  if (mask.empty()) {
    if (!bytes.empty()) std::memcpy(memory, bytes.data(), bytes.size());
    return;
  }
  for (size_t at = 0; at < bytes.size(); at += 8) {
    size_t count = std::min<size_t>(8, bytes.size() - at);
    uint8_t bits = mask[at / 8];
    if (bits == 0xff) {
      std::memcpy(memory + at, bytes.data() + at, count);
      continue;
    }
    for (size_t i = 0; bits != 0 && i < count; ++i) {
      if (bits >> i & 1) memory[at + i] = bytes[at + i];
    }
  }
}

// Applies what the other side sent to memory and shadow. False: it does not fit, and nothing was written.
inline bool apply_changes(std::byte* memory, std::span<std::byte> shadow, uint64_t offset,
                          std::span<const std::byte> bytes, std::span<const uint8_t> mask) {
  if (offset > shadow.size() || bytes.size() > shadow.size() - offset) return false;
  if (!mask.empty() && mask.size() != change_mask_bytes(bytes.size())) return false;
  write_changed(memory + offset, bytes, mask);
  write_changed(shadow.data() + offset, bytes, mask);
  return true;
}

}  // namespace gpuwire::wire
