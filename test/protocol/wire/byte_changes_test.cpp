#include "protocol/wire/byte_changes.hpp"

#include <doctest/doctest.h>

#include <random>

using namespace gpuwire;

namespace {

constexpr uint64_t kSeed = 20;

}  // namespace

TEST_CASE("every byte of a word that is not zero has its bit") {
  for (unsigned bits = 0; bits < 256; ++bits) {
    for (uint64_t value : {0x01, 0x7f, 0x80, 0xff}) {
      uint64_t word = 0;
      for (unsigned i = 0; i < 8; ++i) word |= (bits >> i & 1) ? value << (8 * i) : 0;
      CHECK(wire::nonzero_bytes(word) == bits);
    }
  }
}

TEST_CASE("a change brings another copy up to date, names only changed bytes, and is reported once") {
  MESSAGE("seed " << kSeed);
  std::mt19937_64 random(kSeed);
  for (size_t size : {1u, 7u, 8u, 9u, 4095u, 4096u, 5000u, 300'000u}) {
    std::vector<std::byte> memory(size), shadow(size), other(size), own(size, std::byte{0});
    for (int round = 0; round < 8; ++round) {
      for (size_t i = 0; i < 1 + size / (1u << random() % 12); ++i) memory[random() % size] = std::byte(random());
      const std::vector<std::byte> before = shadow;
      size_t named = 0, differing = 0;
      for (size_t i = 0; i < size; ++i) differing += memory[i] != before[i];
      // A byte that did not change here may have been written there.
      for (size_t i = 0; i < size; i += 3) own[i] = memory[i] == before[i] ? std::byte(random()) : memory[i];
      std::vector<std::byte> there = other;
      for (size_t i = 0; i < size; i += 3) there[i] = own[i];
      wire::take_changes(memory.data(), shadow, [&](const wire::ByteChanges& changes) {
        for (size_t i = 0; i < changes.bytes.size(); ++i)
          named += changes.mask.empty() || (changes.mask[i / 8] >> (i % 8) & 1);
        std::vector<std::byte> ignored(size);
        REQUIRE(wire::apply_changes(there.data(), ignored, changes.offset, changes.bytes, changes.mask));
        REQUIRE(wire::apply_changes(other.data(), ignored, changes.offset, changes.bytes, changes.mask));
      });
      CHECK(named == differing);
      CHECK(shadow == memory);
      CHECK(other == memory);
      for (size_t i = 0; i < size; i += 3) {
        if (there[i] != own[i]) FAIL("a byte that did not change was written");
      }
      size_t again = 0;
      wire::take_changes(memory.data(), shadow, [&](const wire::ByteChanges&) { ++again; });
      CHECK(again == 0);
    }
  }
}

TEST_CASE("each way to write what changed writes those bytes and no others, for every mask and length") {
  MESSAGE("seed " << kSeed);
  std::mt19937_64 random(kSeed);
  const auto check = [&](size_t size, auto&& bits_at) {
    std::vector<std::byte> bytes(size), before(size);
    std::vector<uint8_t> mask(wire::change_mask_bytes(size));
    for (size_t i = 0; i < size; ++i) bytes[i] = std::byte(random()), before[i] = ~bytes[i];
    for (size_t i = 0; i < mask.size(); ++i) mask[i] = bits_at(i);
    std::vector<std::byte> expected = before, plain = before, chosen = before;
    for (size_t i = 0; i < size; ++i) {
      if (mask[i / 8] >> (i % 8) & 1) expected[i] = bytes[i];
    }
    wire::write_changed_plainly(plain.data(), bytes, mask);
    wire::write_changed(chosen.data(), bytes, mask);
    REQUIRE(plain == expected);
    REQUIRE(chosen == expected);
    std::vector<uint8_t> marked(mask.size());
    const bool all = wire::mark_changes(expected.data(), before.data(), size, marked.data());
    if (size % 8) mask.back() &= uint8_t(0xff >> (8 - size % 8));
    REQUIRE(marked == mask);
    REQUIRE(all == (expected == bytes));
  };
  for (unsigned bits = 0; bits < 256; ++bits) check(200, [&](size_t) { return uint8_t(bits); });
  for (size_t size = 1; size < 200; ++size) {
    check(size, [&](size_t) { return uint8_t(random()); });
    check(size, [&](size_t) { return uint8_t(0xff); });
  }
}
