#include "client_stub/driver/host_memory/pinned_pointers.hpp"

#include <doctest/doctest.h>

#include <algorithm>
#include <array>
#include <cstring>
#include <vector>

namespace gpuwire::client {
namespace {

constexpr uint64_t kLow = 0x5000'0000'0000, kHigh = 0x7f00'0000'1000;

// What is wanted, which is then known.
std::vector<uint64_t> take_wanted(PinnedPointers& pointers) {
  std::vector<uint64_t> bases;
  while (auto range = pointers.next_wanted()) {
    bases.push_back(range->base);
    pointers.remove(range->base);
  }
  return bases;
}

struct Known {
  SessionParts parts;
  PinnedPointers pointers{parts};
  Known() {
    pointers.add(kLow, 100);
    pointers.add(kHigh, 4096);
  }
};

std::vector<std::byte> bytes_of(std::vector<uint64_t> words) {
  std::vector<std::byte> bytes(words.size() * sizeof(uint64_t));
  std::memcpy(bytes.data(), words.data(), bytes.size());
  return bytes;
}

}  // namespace

TEST_CASE_FIXTURE(Known, "memory is wanted when a word points into it") {
  pointers.look_through(bytes_of({1, kLow + 99, ~uint64_t{0}}));
  CHECK(pointers.wanted());
  CHECK(take_wanted(pointers) == std::vector<uint64_t>{kLow});
  CHECK_FALSE(pointers.wanted());
  pointers.look_at(kHigh);
  CHECK(take_wanted(pointers) == std::vector<uint64_t>{kHigh});
  CHECK_FALSE(pointers.any());
}

TEST_CASE_FIXTURE(Known, "words beside and between the memory, and half words, want nothing") {
  pointers.look_through(bytes_of({kLow - 1, kLow + 100, kHigh - 1, kHigh + 4096, 0}));
  std::vector<std::byte> half = bytes_of({kLow});
  pointers.look_through(std::span(half).first(7));
  CHECK_FALSE(pointers.wanted());
}

TEST_CASE_FIXTURE(Known, "among data only pointers count that are aligned as the first into an allocation is") {
  pointers.look_through_data(bytes_of({kLow + 4, kLow + 8, kHigh + 1}));
  CHECK_FALSE(pointers.wanted());
  pointers.look_through_data(bytes_of({kHigh + 32}));
  CHECK(take_wanted(pointers) == std::vector<uint64_t>{kHigh});
}

TEST_CASE_FIXTURE(Known, "refused and removed memory is not wanted") {
  pointers.look_at(kLow);
  pointers.refuse(kLow);
  pointers.look_at(kLow);
  CHECK_FALSE(pointers.wanted());
  CHECK(pointers.contains(kLow));
  pointers.look_at(kHigh);
  pointers.remove(kHigh);
  CHECK_FALSE(pointers.wanted());
  CHECK_FALSE(pointers.next_wanted());
}

TEST_CASE("memory where the device knew other memory is wanted at once") {
  SessionParts parts;
  PinnedPointers pointers(parts);
  pointers.note_former(kLow, 0x3000);
  for (uint64_t base : {kLow - 0x1000, kLow + 0x3000}) pointers.add(base, 0x1000);
  CHECK_FALSE(pointers.wanted());
  for (uint64_t base : {kLow, kLow + 0x2000}) pointers.add(base, 0x1000);
  CHECK(take_wanted(pointers) == std::vector<uint64_t>{kLow, kLow + 0x2000});
}

TEST_CASE("a part of memory is looked through by the words that it belongs to, wherever the memory begins") {
  for (uint64_t address : {0x1000, 0x1001, 0x1004, 0x1007}) {
    const uint64_t first = (8 - address % 8) % 8;  // offset of the first whole word
    std::vector<std::byte> memory(first + 3 * 8 + 5);
    const std::array<uint64_t, 3> words{kLow, kLow + 0x10000, kLow + 0x20000};
    std::memcpy(memory.data() + first, words.data(), sizeof words);
    for (uint64_t offset = 0; offset < memory.size(); ++offset) {
      for (uint64_t bytes : {1, 9, 100}) {
        SessionParts parts;
        PinnedPointers pointers(parts);
        std::vector<uint64_t> touched;
        const uint64_t end = std::min<uint64_t>(offset + bytes, memory.size());
        for (size_t i = 0; i < words.size(); ++i) {
          pointers.add(words[i], 8);
          if (offset < first + (i + 1) * 8 && end > first + i * 8) touched.push_back(words[i]);
        }
        pointers.look_around(memory, address, offset, end - offset);
        CAPTURE(address);
        CAPTURE(offset);
        CAPTURE(bytes);
        CHECK(take_wanted(pointers) == touched);
      }
    }
  }
}

}  // namespace gpuwire::client
