#include "protocol/fatbin/fatbin.hpp"

#include <doctest/doctest.h>

#include <random>

#include "fatbin_builder.hpp"

namespace {

using namespace gpuwire::fatbin;
using namespace gpuwire::fatbin::test;

constexpr std::string_view kText =
    ".version 9.0\n.target sm_75\n.address_size 64\n// "
    "aaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaa\n";

std::string contents(const Entry& entry) {
  const auto bytes = decompress(entry);
  REQUIRE(bytes.has_value());
  return {bytes->begin(), bytes->end()};
}

// Reads and decompresses whatever it can; only its memory accesses matter.
void exercise(std::span<const uint8_t> bytes) {
  const auto entries = read_container(bytes);
  if (!entries) {
    return;
  }
  for (const Entry& entry : *entries) {
    if (entry.decompressed_bytes < 1 << 20) {
      (void)decompress(entry);
    }
  }
  (void)select_entry(*entries, {7, 5});
}

}  // namespace

TEST_CASE("Entries come back with their kind, architecture and contents, whatever their compression") {
  const Bytes bytes = build_container({{kPtx, 75, kText},
                                       {kPtx, 80, kText, kLz4},
                                       {kElf, 90, kText, kZstd | kExactly},
                                       {kPtx, 100, kText, kFamily},
                                       {64, 75, "x"}});
  const auto entries = read_container(bytes);
  REQUIRE(entries.has_value());
  REQUIRE(entries->size() == 5);
  const auto& all = *entries;
  CHECK(all[0].kind == Kind::ptx);
  CHECK(all[0].sm == 75);
  CHECK(all[0].compression == Compression::none);
  CHECK(all[1].compression == Compression::lz4);
  CHECK(all[2].kind == Kind::cubin);
  CHECK(all[2].compression == Compression::zstd);
  CHECK(all[2].architecture_specific);
  CHECK(!all[2].family_specific);
  CHECK(all[3].family_specific);
  CHECK(all[4].kind == Kind::other);
  for (int i = 0; i < 4; ++i) {
    CHECK(contents(all[i]) == kText);
  }
}

TEST_CASE("Relocatable PTX is known by the option recorded with it") {
  const Bytes bytes =
      build_container({{kPtx, 75, kText, 0, "--compile-only  "}, {kPtx, 75, kText, 0, "-g"}, {kPtx, 75, kText}});
  const auto entries = read_container(bytes);
  REQUIRE(entries.has_value());
  CHECK((*entries)[0].relocatable);
  CHECK(!(*entries)[1].relocatable);
  CHECK((*entries)[1].options == "-g");
  CHECK(!(*entries)[2].relocatable);
}

TEST_CASE("A container cut short at any byte is refused, and nothing behind the cut is read") {
  const Bytes bytes =
      build_container({{kPtx, 75, kText, kZstd}, {kElf, 75, kText, kLz4}, {kPtx, 80, kText, 0, "--compile-only"}});
  for (size_t length = 0; length < bytes.size(); ++length) {
    const Bytes cut(bytes.begin(), bytes.begin() + static_cast<ptrdiff_t>(length));
    CHECK_FALSE(read_container(cut).has_value());
    Bytes lying = cut;  // the header agrees with the cut, so that the entries are what is truncated
    if (lying.size() >= 16) {
      put<uint64_t>(lying, 8, lying.size() - 16);
      exercise(lying);
    }
  }
  CHECK(read_container(bytes).has_value());
}

TEST_CASE("Damage anywhere in the headers neither crashes nor reads outside") {
  constexpr uint32_t kSeed = 20240131;
  INFO("seed ", kSeed);
  std::mt19937 random(kSeed);
  const Bytes bytes = build_container({{kPtx, 75, kText, kZstd}, {kPtx, 80, kText, kLz4, "--compile-only"}});
  for (int round = 0; round < 20000; ++round) {
    Bytes damaged = bytes;
    for (uint32_t hits = 1 + random() % 4; hits > 0; --hits) {
      damaged[random() % damaged.size()] = random() % 3 == 0 ? 0xFF : static_cast<uint8_t>(random());
    }
    exercise(damaged);
  }
}

TEST_CASE("A payload that claims to decompress to more than the limit is refused") {
  Bytes bytes = build_container({{kPtx, 75, kText, kZstd}});
  put<uint64_t>(bytes, 16 + 56, kDecompressedBytesMax + 1);
  CHECK_FALSE(read_container(bytes).has_value());
}

TEST_CASE("Damaged compressed data is an error, not a shorter text") {
  for (const uint64_t compression : {kLz4, kZstd}) {
    Bytes bytes = build_container({{kPtx, 75, kText, compression}});
    put<uint64_t>(bytes, 16 + 56, kText.size() + 1);
    const auto entries = read_container(bytes);
    REQUIRE(entries.has_value());
    CHECK_FALSE(decompress((*entries)[0]).has_value());
  }
}

TEST_CASE("The choice is the newest cubin of the device's generation, else the newest PTX it may compile") {
  const Bytes bytes = build_container(
      {{kElf, 70, "70"}, {kElf, 75, "75"}, {kElf, 80, "80"}, {kPtx, 60, "p60"}, {kPtx, 70, "p70"}, {kPtx, 80, "p80"}});
  const auto entries = read_container(bytes);
  REQUIRE(entries.has_value());
  const auto chosen = [&](uint32_t major, uint32_t minor, bool ptx_only = false) {
    const Entry* entry = select_entry(*entries, {major, minor}, ptx_only);
    return entry == nullptr ? std::string("none")
                            : std::string(entry->kind == Kind::ptx ? "p" : "") + std::to_string(entry->sm);
  };
  CHECK(chosen(7, 5) == "75");
  CHECK(chosen(7, 2) == "70");
  CHECK(chosen(7, 5, true) == "p70");
  CHECK(chosen(8, 6) == "80");
  CHECK(chosen(9, 0) == "p80");
  CHECK(chosen(6, 1) == "p60");
  CHECK(chosen(5, 0) == "none");
}

TEST_CASE("Code for one exact architecture or family runs nowhere else") {
  const Bytes bytes = build_container(
      {{kElf, 90, "e", kExactly}, {kPtx, 90, "p", kExactly}, {kElf, 100, "f", kFamily}, {kPtx, 100, "g", kFamily}});
  const auto entries = read_container(bytes);
  REQUIRE(entries.has_value());
  CHECK(select_entry(*entries, {9, 0}) == &(*entries)[0]);
  CHECK(select_entry(*entries, {9, 0}, true) == &(*entries)[1]);
  CHECK(select_entry(*entries, {10, 3}) == &(*entries)[2]);
  CHECK(select_entry(*entries, {10, 3}, true) == &(*entries)[3]);
  CHECK(select_entry(*entries, {12, 0}) == nullptr);
  CHECK(select_entry(*entries, {8, 9}) == nullptr);
}
