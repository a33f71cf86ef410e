#include "test/fuzz/mutate.hpp"

#include <algorithm>
#include <cstring>

namespace gpuwire::test {

namespace {

using Bytes = std::vector<uint8_t>;

// Values at the edges of fields of every width.
constexpr uint64_t kEdges[] = {0,
                               1,
                               7,
                               8,
                               0x7f,
                               0x80,
                               0xff,
                               0x7fff,
                               0x8000,
                               0xffff,
                               0x10000,
                               0x10001,
                               0x7fffffff,
                               0x80000000,
                               0xffffffff,
                               64ull << 20,
                               (64ull << 20) + 1,
                               ~0ull};

size_t place(const Bytes& bytes, std::mt19937_64& random) { return bytes.empty() ? 0 : random() % bytes.size(); }

void change_once(Bytes& bytes, const Bytes& other, std::mt19937_64& random) {
  size_t at = place(bytes, random);
  switch (random() % 8) {
    case 0:
      if (!bytes.empty()) bytes[at] ^= uint8_t(1u << random() % 8);
      break;
    case 1:
      if (!bytes.empty()) bytes[at] = uint8_t(random());
      break;
    case 2: {
      uint64_t edge = kEdges[random() % std::size(kEdges)];
      size_t width = size_t(1) << random() % 4;
      if (at + width <= bytes.size()) std::memcpy(bytes.data() + at, &edge, width);
      break;
    }
    case 3: bytes.resize(at); break;
    case 4:
      bytes.erase(bytes.begin() + ptrdiff_t(at),
                  bytes.begin() + ptrdiff_t(std::min(bytes.size(), at + 1 + random() % 64)));
      break;
    case 5: bytes.insert(bytes.begin() + ptrdiff_t(at), 1 + random() % 64, uint8_t(random())); break;
    case 6: {
      size_t from = place(other, random), count = std::min<size_t>(other.size() - from, 1 + random() % 256);
      bytes.insert(bytes.begin() + ptrdiff_t(at), other.begin() + ptrdiff_t(from),
                   other.begin() + ptrdiff_t(from + count));
      break;
    }
    default:
      // Appending a whole input to another keeps frames intact; its first byte is not part of the stream.
      if (!other.empty()) bytes.insert(bytes.end(), other.begin() + 1, other.end());
  }
}

}  // namespace

Bytes mutate(const Bytes& from, const Bytes& other, std::mt19937_64& random) {
  Bytes bytes = from;
  for (uint64_t changes = 1 + random() % 6; changes; --changes) change_once(bytes, other, random);
  if (bytes.size() > kFuzzInputBytesMax) bytes.resize(kFuzzInputBytesMax);
  return bytes;
}

}  // namespace gpuwire::test
