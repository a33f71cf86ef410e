// Builds fat binaries byte by byte, for tests that need ones no compiler writes.
#pragma once

#include <lz4.h>
#include <zstd.h>

#include <cstdint>
#include <cstring>
#include <string>
#include <string_view>
#include <vector>

namespace gpuwire::fatbin::test {

using Bytes = std::vector<uint8_t>;

inline constexpr uint64_t k64Bit = 0x1, kLz4 = 0x2000, kZstd = 0x8000, kExactly = 0x100000, kFamily = 0x200000;
inline constexpr uint16_t kPtx = 1, kElf = 2;

template <typename T>
void put(Bytes& out, size_t offset, T value) {
  std::memcpy(out.data() + offset, &value, sizeof value);
}

struct EntrySpec {
  uint16_t kind = kPtx;
  uint32_t sm = 75;
  std::string_view contents;
  uint64_t flags = 0;  // kLz4 or kZstd: the contents are compressed
  std::string_view options = {};
};

inline Bytes build_entry(const EntrySpec& spec) {
  Bytes payload(spec.contents.begin(), spec.contents.end());
  if ((spec.flags & kLz4) != 0) {
    payload.resize(static_cast<size_t>(LZ4_compressBound(static_cast<int>(spec.contents.size()))));
    payload.resize(static_cast<size_t>(
        LZ4_compress_default(spec.contents.data(), reinterpret_cast<char*>(payload.data()),
                             static_cast<int>(spec.contents.size()), static_cast<int>(payload.size()))));
  } else if ((spec.flags & kZstd) != 0) {
    payload.resize(ZSTD_compressBound(spec.contents.size()));
    payload.resize(ZSTD_compress(payload.data(), payload.size(), spec.contents.data(), spec.contents.size(), 3));
  }
  const bool compressed = (spec.flags & (kLz4 | kZstd)) != 0;
  const uint32_t stored = static_cast<uint32_t>(payload.size());
  payload.resize((payload.size() + 7) / 8 * 8);
  Bytes header(64 + (spec.options.empty() ? 0 : (8 + spec.options.size() + 8) / 8 * 8));
  put<uint16_t>(header, 0, spec.kind);
  put<uint16_t>(header, 2, 0x101);
  put<uint32_t>(header, 4, static_cast<uint32_t>(header.size()));
  put<uint64_t>(header, 8, payload.size());
  put<uint32_t>(header, 16, compressed ? stored : 0);
  put<uint32_t>(header, 28, spec.sm);
  put<uint64_t>(header, 40, spec.flags | k64Bit);
  put<uint64_t>(header, 56, compressed ? spec.contents.size() : 0);
  if (!spec.options.empty()) {
    put<uint32_t>(header, 20, 64);
    put<uint32_t>(header, 64, 72);
    put<uint32_t>(header, 68, static_cast<uint32_t>(spec.options.size()));
    std::memcpy(header.data() + 72, spec.options.data(), spec.options.size());
  }
  header.insert(header.end(), payload.begin(), payload.end());
  return header;
}

inline Bytes build_container(const std::vector<EntrySpec>& specs) {
  Bytes out(16);
  for (const EntrySpec& spec : specs) {
    const Bytes entry = build_entry(spec);
    out.insert(out.end(), entry.begin(), entry.end());
  }
  put<uint32_t>(out, 0, 0xBA55ED50);
  put<uint16_t>(out, 4, 1);
  put<uint16_t>(out, 6, 16);
  put<uint64_t>(out, 8, out.size() - 16);
  return out;
}

}  // namespace gpuwire::fatbin::test
