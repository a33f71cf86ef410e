#include "client_stub/driver/state/host_memory/pinned_pointers.hpp"

#include <doctest/doctest.h>

#include <algorithm>
#include <array>
#include <cstring>
#include <vector>

#include "client_stub/driver/state/memory/address_map.hpp"

namespace gpuwire::client {
namespace {

constexpr uint64_t kLow = 0x5000'0000'0000, kHigh = 0x7f00'0000'1000;

// Returns the wanted blocks, and marks them as known.
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
  pointers.scan_words(bytes_of({1, kLow + 99, ~uint64_t{0}}));
  CHECK(pointers.wanted());
  CHECK(take_wanted(pointers) == std::vector<uint64_t>{kLow});
  CHECK_FALSE(pointers.wanted());
  pointers.scan_address(kHigh);
  CHECK(take_wanted(pointers) == std::vector<uint64_t>{kHigh});
  CHECK_FALSE(pointers.any());
}

TEST_CASE_FIXTURE(Known, "words between the memory, and half words, want nothing") {
  pointers.scan_words(bytes_of({kLow - PinnedPointers::kBelowAmongOthersBytesMax - 1, kLow + 101,
                                kHigh - PinnedPointers::kBelowAmongOthersBytesMax - 1, kHigh + 4097, ~uint64_t{0}}));
  std::vector<std::byte> half = bytes_of({kLow});
  pointers.scan_words(std::span(half).first(7));
  CHECK_FALSE(pointers.wanted());
}

TEST_CASE_FIXTURE(Known,
                  "memory is wanted when an argument points to its end, or so far below it as an index may reach") {
  pointers.scan_words(bytes_of({kLow + 100}));
  CHECK(take_wanted(pointers) == std::vector<uint64_t>{kLow});
  pointers.add(kLow, 4096, PinnedPointers::Around::pinned_memory);
  pointers.scan_words(bytes_of({kLow - PinnedPointers::kBelowBytesMax - 1}));
  CHECK_FALSE(pointers.wanted());
  pointers.scan_words(bytes_of({kLow - PinnedPointers::kBelowBytesMax, kHigh - 4}));
  CHECK(take_wanted(pointers) == std::vector<uint64_t>{kLow, kHigh});
}

TEST_CASE_FIXTURE(Known, "an address in other memory that is known means that memory") {
  AddressMap& map = address_map();
  map.insert({.base = kLow + 100, .bytes = 50});
  map.insert({.base = kHigh - 50, .bytes = 50});
  pointers.scan_words(bytes_of({kLow + 100, kHigh - 1}));
  CHECK_FALSE(pointers.wanted());
  map.take_all([](const AddressRange&) { return true; }, [](const AddressRange&) {});
}

TEST_CASE_FIXTURE(Known, "memory is wanted when two halves beside each other are an address, in either order") {
  const auto low = uint32_t(kHigh), high = uint32_t(kHigh >> 32);
  for (const std::array<uint32_t, 4>& halves : {std::array{7u, low, high, 8u}, std::array{high, low, 7u, 8u}}) {
    std::vector<std::byte> arguments(sizeof halves);
    std::memcpy(arguments.data(), halves.data(), sizeof halves);
    pointers.scan_words(arguments);
    CHECK(take_wanted(pointers) == std::vector<uint64_t>{kHigh});
    pointers.add(kHigh, 4096);
  }
  for (const uint64_t first : {0, 4}) {
    pointers.scan_half(0x1000 + first, first == 0 ? low : high);
    CHECK_FALSE(pointers.wanted());
    pointers.scan_half(0x1004 - first, first == 0 ? high : low);
    CHECK(take_wanted(pointers) == std::vector<uint64_t>{kHigh});
    pointers.add(kHigh, 4096);
    pointers.scan_half(0x9000, 0);
  }
}

TEST_CASE_FIXTURE(Known, "among data only pointers count that are aligned as the first into an allocation is") {
  pointers.scan_data(bytes_of({kLow - 16, kLow + 4, kLow + 8, kLow + 100, kHigh - 16, kHigh + 1}));
  CHECK_FALSE(pointers.wanted());
  pointers.scan_data(bytes_of({kHigh + 4096}));
  CHECK(take_wanted(pointers) == std::vector<uint64_t>{kHigh});
  pointers.add(kHigh, 4096);
  pointers.scan_data(bytes_of({kHigh + 32}));
  CHECK(take_wanted(pointers) == std::vector<uint64_t>{kHigh});
}

TEST_CASE("a pointer is found wherever it stands, among words of every kind and any number of them") {
  const uint64_t others[] = {
      0, ~uint64_t{0}, 1, kLow >> 32, kHigh >> 32, kLow - (uint64_t{1} << 32), uint64_t{1} << 63};
  for (uint64_t other : others) {
    for (size_t words = 1; words <= 33; ++words) {
      for (size_t place = 0; place < words; ++place) {
        for (uint64_t base : {kLow, kHigh}) {
          Known known;
          std::vector<uint64_t> data(words, other);
          data[place] = base + 16;
          known.pointers.scan_data(bytes_of(data));
          CHECK(take_wanted(known.pointers) == std::vector<uint64_t>{base});
        }
      }
    }
  }
}

TEST_CASE_FIXTURE(Known, "a table is told of when a word points into it, once, and until it ends") {
  constexpr uint64_t kTables = 0x6000'0000'0000, kApart = 0x10000;
  for (uint64_t i = 0; i < 3; ++i) pointers.add_table(kTables + i * kApart, 4096);
  auto told = [&](size_t from) {
    std::vector<uint64_t> bases;
    for (const PinnedPointers::Range& table : pointers.sent_tables(from)) bases.push_back(table.base);
    return bases;
  };
  pointers.scan_words(bytes_of({kTables - 1, kTables + 4097, kTables + kApart - 1}));
  CHECK(told(0).empty());
  pointers.scan_words(bytes_of({kTables + 2 * kApart + 100}));
  pointers.scan_data(bytes_of({kTables, kTables + 2 * kApart}));
  CHECK(told(0) == std::vector<uint64_t>{kTables + 2 * kApart, kTables});
  CHECK(told(1) == std::vector<uint64_t>{kTables});
  CHECK(pointers.any_unsent());
  pointers.remove_table(kTables + 2 * kApart);
  pointers.remove_table(kTables + kApart);
  CHECK_FALSE(pointers.any_unsent());
  CHECK(told(0) == std::vector<uint64_t>{kTables});
  CHECK_FALSE(pointers.wanted());
}

TEST_CASE("all memory is wanted when the tables cost more to look through than it costs to compare") {
  constexpr uint64_t kTables = 0x6000'0000'0000, kTableBytes = 64u << 10;
  SessionParts parts;
  PinnedPointers pointers(parts);
  uint64_t tables = 0;
  auto tell_of_tables = [&](uint64_t until) {
    for (; tables < until; ++tables) {
      pointers.add_table(kTables + tables * kTableBytes, kTableBytes);
      pointers.scan_words(bytes_of({kTables + tables * kTableBytes}));
    }
  };
  pointers.add(kLow, kTableBytes);
  pointers.add(kHigh, kTableBytes);
  CHECK(pointers.any_unseen());
  // The scan of four bytes costs as much as the comparison of one.
  tell_of_tables(8);
  CHECK_FALSE(pointers.want_all_if_tables_cost_more());
  CHECK_FALSE(pointers.wanted());
  SUBCASE("for memory that is wanted, or was refused, nothing is looked through") {
    pointers.scan_address(kLow);
    pointers.scan_address(kHigh);
    pointers.refuse(kHigh);
    CHECK_FALSE(pointers.any_unseen());
    CHECK(take_wanted(pointers) == std::vector<uint64_t>{kLow});
    CHECK(pointers.any());
    CHECK_FALSE(pointers.any_unseen());
  }
  SUBCASE("more tables") {
    tell_of_tables(12);
    CHECK(pointers.want_all_if_tables_cost_more());
    CHECK_FALSE(pointers.any_unseen());
    CHECK(take_wanted(pointers) == std::vector<uint64_t>{kLow, kHigh});
  }
  SUBCASE("less memory, unless the tables are few") {
    pointers.remove(kHigh);
    CHECK(pointers.want_all_if_tables_cost_more());
    CHECK(take_wanted(pointers) == std::vector<uint64_t>{kLow});
    pointers.add(kLow, 4096);
    while (tables > 4) pointers.remove_table(kTables + --tables * kTableBytes);
    CHECK_FALSE(pointers.want_all_if_tables_cost_more());
    CHECK(pointers.any_unseen());
  }
}

TEST_CASE("arguments tell of tables also while there is no memory that the device does not know") {
  SessionParts parts;
  PinnedPointers pointers(parts);
  pointers.add_table(kLow, 4096);
  CHECK_FALSE(pointers.any());
  pointers.scan_words(bytes_of({kLow + 8}));
  CHECK(pointers.sent_tables(0).size() == 1);
  CHECK_FALSE(pointers.any_unsent());
}

TEST_CASE_FIXTURE(Known, "refused and removed memory is not wanted") {
  pointers.scan_address(kLow);
  pointers.refuse(kLow);
  pointers.scan_address(kLow);
  CHECK_FALSE(pointers.wanted());
  CHECK(pointers.contains(kLow));
  pointers.scan_address(kHigh);
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
        pointers.scan_around(memory, address, offset, end - offset);
        CAPTURE(address);
        CAPTURE(offset);
        CAPTURE(bytes);
        CHECK(take_wanted(pointers) == touched);
      }
    }
  }
}

}  // namespace gpuwire::client
