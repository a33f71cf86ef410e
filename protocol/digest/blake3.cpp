#include "protocol/digest/blake3.hpp"

#include <algorithm>
#include <bit>
#include <cstring>

#include "protocol/digest/blake3_kernel.hpp"

namespace gpuwire::digest {
namespace {

static_assert(std::endian::native == std::endian::little);

constexpr size_t kPartsMax = kInputBytesMax / kPartBytes;

// Compresses one input of any length; the last block is padded with zeros (2.4).
void compress_one(const std::byte* data, size_t bytes, uint64_t counter, const uint32_t* key, uint32_t flags,
                  uint32_t first_flags, uint32_t last_flags, std::byte* out) noexcept {
  uint32_t h[8];
  std::copy_n(key, 8, h);
  size_t at = 0;
  do {
    size_t length = std::min(kBlockBytes, bytes - at);
    uint32_t m[16] = {};
    if (length) std::memcpy(m, data + at, length);
    uint32_t all = flags | (at == 0 ? first_flags : 0) | (at + length == bytes ? last_flags : 0);
    uint32_t v[16] = {h[0],
                      h[1],
                      h[2],
                      h[3],
                      h[4],
                      h[5],
                      h[6],
                      h[7],
                      kInitial[0],
                      kInitial[1],
                      kInitial[2],
                      kInitial[3],
                      uint32_t(counter),
                      uint32_t(counter >> 32),
                      uint32_t(length),
                      all};
    rounds(v, m);
    for (int i = 0; i < 8; ++i) h[i] = v[i] ^ v[i + 8];
    at += length;
  } while (at < bytes);
  std::memcpy(out, h, sizeof h);
}

struct Wide {
  Kernel kernel;
  size_t width;
};
Wide wide(Lanes lanes) noexcept {
  switch (lanes) {
    case Lanes::four: return {compress_4, 4};
    case Lanes::eight: return {compress_8, 8};
    case Lanes::sixteen: return {compress_16, 16};
  }
  return {compress_4, 4};
}

}  // namespace

Lanes lanes_here() noexcept {
#if defined(__x86_64__)
  static const Lanes most = [] {
    __builtin_cpu_init();
    if (__builtin_cpu_supports("avx512f") && __builtin_cpu_supports("avx512vl")) return Lanes::sixteen;
    return __builtin_cpu_supports("avx2") ? Lanes::eight : Lanes::four;
  }();
  return most;
#else
  return Lanes::four;
#endif
}

Digest blake3(std::span<const std::byte> input, const Key* key, Lanes lanes) noexcept {
  uint32_t words[8];
  if (key) std::memcpy(words, key->data(), sizeof words);
  else std::copy_n(kInitial, 8, words);
  const uint32_t flags = key ? kKeyed : 0;
  const Wide wide_kernel = wide(lanes);
  Digest digest;
  auto* out = reinterpret_cast<std::byte*>(digest.data());
  if (input.size() <= kPartBytes) {
    compress_one(input.data(), input.size(), 0, words, flags, kPartStart, kPartEnd | kRoot, out);
    return digest;
  }
  if (input.size() > kInputBytesMax) input = input.first(kInputBytesMax);
  alignas(64) std::byte values[kPartsMax * kDigestBytes];
  // The leaves: complete parts in parallel, the remaining ones one by one.
  const size_t whole = input.size() / kPartBytes;
  size_t count = 0;
  while (whole - count >= wide_kernel.width) {
    wide_kernel.kernel(
        {input.data() + count * kPartBytes, kPartBytes / kBlockBytes, count, true, words, flags, kPartStart, kPartEnd},
        values + count * kDigestBytes);
    count += wide_kernel.width;
  }
  for (size_t at = count * kPartBytes; at < input.size(); at += kPartBytes, ++count)
    compress_one(input.data() + at, std::min(kPartBytes, input.size() - at), count, words, flags, kPartStart, kPartEnd,
                 values + count * kDigestBytes);
  // Level by level, two values are combined into one, and an odd value moves up unchanged. This is the tree whose left
  // subtrees are full (2.1).
  while (count > 2) {
    size_t pairs = count / 2, done = 0;
    for (; pairs - done >= wide_kernel.width; done += wide_kernel.width)
      wide_kernel.kernel({values + done * kBlockBytes, 1, 0, false, words, flags | kParent, 0, 0},
                         values + done * kDigestBytes);
    for (; done < pairs; ++done)
      compress_one(values + done * kBlockBytes, kBlockBytes, 0, words, flags | kParent, 0, 0,
                   values + done * kDigestBytes);
    if (count % 2) std::memcpy(values + pairs * kDigestBytes, values + (count - 1) * kDigestBytes, kDigestBytes);
    count = pairs + count % 2;
  }
  compress_one(values, kBlockBytes, 0, words, flags | kParent | kRoot, 0, 0, out);
  return digest;
}

}  // namespace gpuwire::digest
