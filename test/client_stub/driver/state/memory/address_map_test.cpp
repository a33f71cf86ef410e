#include "client_stub/driver/state/memory/address_map.hpp"

#include <doctest/doctest.h>
#include <sys/mman.h>

#include <algorithm>
#include <atomic>
#include <cstdio>
#include <fstream>
#include <random>
#include <string>
#include <thread>
#include <vector>

namespace gpuwire::client {
namespace {

constexpr uint64_t kPage = 4096;

// Returns free addresses of this process, for test reservations.
uint64_t scratch_addresses(uint64_t bytes) {
  void* place = mmap(nullptr, bytes, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
  REQUIRE(place != MAP_FAILED);
  munmap(place, bytes);
  return reinterpret_cast<uint64_t>(place);
}

bool mapped(uint64_t page) {
  unsigned char resident;
  return mincore(reinterpret_cast<void*>(page), kPage, &resident) == 0;
}

}  // namespace

TEST_CASE("The address map finds, for every address, the range that a list of all ranges finds") {
  const unsigned seed = 20240229;
  INFO("seed " << seed);
  std::mt19937_64 random(seed);
  AddressMap map;
  std::vector<AddressRange> model;
  for (int step = 0; step < 4000; ++step) {
    uint64_t base = 0x10000 + random() % 4096, bytes = 1 + random() % 200;
    switch (random() % 4) {
      case 0:
      case 1: {
        AddressRange range{.base = base, .bytes = bytes, .owner = uint64_t(step)};
        size_t dropped =
            std::erase_if(model, [&](const AddressRange& old) { return old.base < range.end() && base < old.end(); });
        CHECK(map.insert(range).size() == dropped);
        model.push_back(range);
        break;
      }
      case 2: {
        auto found =
            std::find_if(model.begin(), model.end(), [&](const AddressRange& range) { return range.base == base; });
        auto taken = map.take(base, [](const AddressRange&) { return true; });
        REQUIRE(taken.has_value() == (found != model.end()));
        if (taken) model.erase(found);
        break;
      }
      case 3: {
        AddressRange range{.base = base, .bytes = bytes, .owner = uint64_t(step)};
        bool overlaps = std::any_of(model.begin(), model.end(), [&](const AddressRange& old) {
          return old.base < range.end() && base < old.end();
        });
        CHECK(map.insert_if_free(range) == !overlaps);
        if (!overlaps) model.push_back(range);
        break;
      }
    }
    uint64_t address = 0x10000 + random() % 4400;
    auto expected =
        std::find_if(model.begin(), model.end(), [&](const AddressRange& range) { return range.contains(address, 1); });
    auto found = map.find(address);
    REQUIRE(found.has_value() == (expected != model.end()));
    if (found) {
      CHECK(found->base == expected->base);
      CHECK(found->owner == expected->owner);
    }
    REQUIRE(map.size() == model.size());
  }
}

TEST_CASE("A change of a stretch of addresses reaches the ranges that lie in it whole") {
  AddressMap map;
  for (uint64_t base : {100, 110, 120, 140}) map.insert({.base = base, .bytes = 10});
  map.update_within(105, 45, [](AddressRange& range) { range.owner = 1; });
  map.update_within(120, 9, [](AddressRange& range) { range.owner = 2; });
  map.update_within(140, UINT64_MAX, [](AddressRange& range) { range.device = 3; });
  CHECK(map.find(100)->owner == 0);
  CHECK(map.find(110)->owner == 1);
  CHECK(map.find(120)->owner == 1);
  CHECK(map.find(140)->owner == 1);
  CHECK(map.find(140)->device == 3);
  CHECK(map.find(120)->device == -1);
}

TEST_CASE("Every range that is inserted gets a buffer id of its own") {
  AddressMap map;
  map.insert({.base = 100, .bytes = 10});
  map.insert({.base = 200, .bytes = 10});
  uint64_t first = map.find(100)->buffer_id;
  CHECK(first != map.find(200)->buffer_id);
  map.take(100, [](const AddressRange&) { return true; });
  map.insert({.base = 100, .bytes = 10});
  CHECK(map.find(100)->buffer_id != first);
}

TEST_CASE("A range of no bytes is not in the map") {
  AddressMap map;
  map.insert({.base = 100, .bytes = 0});
  CHECK(map.size() == 0);
  CHECK_FALSE(map.insert_if_free({.base = 100, .bytes = 0}));
}

TEST_CASE("Readers of the address map see whole ranges while others insert and remove") {
  AddressMap map;
  map.insert({.base = 0x1000, .bytes = 0x1000, .owner = 7});
  std::atomic<bool> stop{false};
  std::atomic<int> wrong{0};
  std::vector<std::thread> readers;
  for (int i = 0; i < 3; ++i) {
    readers.emplace_back([&] {
      while (!stop.load(std::memory_order_relaxed)) {
        auto steady = map.find(0x1800);
        if (!steady || steady->owner != 7) ++wrong;
        auto changing = map.find(0x3000);
        if (changing && changing->owner != changing->bytes) ++wrong;
        std::this_thread::yield();  // the lock may prefer readers, and the writer has to finish
      }
    });
  }
  for (uint64_t i = 1; i < 3000; ++i) {
    map.insert({.base = 0x3000, .bytes = i, .owner = i});
    if (i % 3 == 0) map.take(0x3000, [](const AddressRange&) { return true; });
  }
  stop = true;
  for (auto& reader : readers) reader.join();
  CHECK(wrong == 0);
}

TEST_CASE("Reserved addresses stay out of the way of other mappings until they are released") {
  uint64_t place = scratch_addresses(16 * kPage);
  AddressReservations reservations;
  REQUIRE(reservations.reserve(place, 4 * kPage));
  CHECK(mapped(place));
  CHECK(mapped(place + 3 * kPage));
  CHECK_FALSE(mapped(place + 4 * kPage));
  CHECK(reservations.reserved_bytes() == 4 * kPage);
  reservations.release(place, 4 * kPage);
  CHECK_FALSE(mapped(place));
  CHECK(reservations.reserved_bytes() == 0);
}

TEST_CASE("Small allocations share the pages that they are on") {
  uint64_t place = scratch_addresses(4 * kPage);
  AddressReservations reservations;
  REQUIRE(reservations.reserve(place, 512));
  REQUIRE(reservations.reserve(place + 512, 512));
  REQUIRE(reservations.reserve(place + 1024, 2 * kPage));
  CHECK(reservations.reserved_bytes() == 3 * kPage);
  reservations.release(place, 512);
  CHECK(mapped(place));
  reservations.release(place + 1024, 2 * kPage);
  CHECK(mapped(place));
  CHECK_FALSE(mapped(place + kPage));
  reservations.release(place + 512, 512);
  CHECK_FALSE(mapped(place));
}

TEST_CASE("An address range in which the program has something is not reserved, not even in part") {
  uint64_t place = scratch_addresses(8 * kPage);
  void* own = mmap(reinterpret_cast<void*>(place + 4 * kPage), kPage, PROT_READ,
                   MAP_PRIVATE | MAP_ANONYMOUS | MAP_FIXED, -1, 0);
  REQUIRE(own != MAP_FAILED);
  AddressReservations reservations;
  REQUIRE(reservations.reserve(place + 2 * kPage, kPage));
  CHECK_FALSE(reservations.reserve(place, 6 * kPage));
  CHECK_FALSE(mapped(place));
  CHECK_FALSE(mapped(place + 3 * kPage));
  CHECK(mapped(place + 2 * kPage));
  CHECK(reservations.reserved_bytes() == kPage);
  munmap(own, kPage);
  CHECK(reservations.reserve(place, 6 * kPage));
}

TEST_CASE("Page counts of reservations follow a model through random reserving and releasing") {
  const unsigned seed = 77;
  INFO("seed " << seed);
  std::mt19937_64 random(seed);
  constexpr uint64_t kPages = 64;
  uint64_t place = scratch_addresses(kPages * kPage);
  AddressReservations reservations;
  std::vector<int> uses(kPages, 0);
  struct Held {
    uint64_t base, bytes;
  };
  std::vector<Held> held;
  for (int step = 0; step < 600; ++step) {
    if (held.empty() || random() % 2) {
      uint64_t base = random() % ((kPages - 8) * kPage), bytes = 1 + random() % (6 * kPage);
      REQUIRE(reservations.reserve(place + base, bytes));
      held.push_back({base, bytes});
      for (uint64_t page = base / kPage; page <= (base + bytes - 1) / kPage; ++page) ++uses[page];
    } else {
      size_t which = random() % held.size();
      auto [base, bytes] = held[which];
      held.erase(held.begin() + long(which));
      reservations.release(place + base, bytes);
      for (uint64_t page = base / kPage; page <= (base + bytes - 1) / kPage; ++page) --uses[page];
    }
    uint64_t expected = uint64_t(std::count_if(uses.begin(), uses.end(), [](int count) { return count > 0; })) * kPage;
    REQUIRE(reservations.reserved_bytes() == expected);
  }
}

namespace {

// The kernel's mappings in this range.
size_t mappings(uint64_t begin, uint64_t end) {
  std::ifstream maps("/proc/self/maps");
  size_t count = 0;
  for (std::string line; std::getline(maps, line);) {
    unsigned long first = 0, last = 0;
    if (std::sscanf(line.c_str(), "%lx-%lx", &first, &last) == 2 && first < end && last > begin) ++count;
  }
  return count;
}

constexpr uint64_t kChunk = 2u << 20;

}  // namespace

TEST_CASE("Any number of small blocks with holes between them takes few of the kernel's mappings") {
  constexpr uint64_t kBlocks = 30'000, kStride = 2 * kPage;
  const uint64_t place = scratch_addresses(kBlocks * kStride + kChunk);
  const uint64_t first = (place + kChunk - 1) & ~(kChunk - 1), end = first + kBlocks * kStride;
  AddressReservations reservations;
  for (uint64_t i = 0; i < kBlocks; ++i) REQUIRE(reservations.reserve(first + i * kStride, kPage));
  CHECK(reservations.reserved_bytes() == kBlocks * kPage);
  CHECK(mappings(first, end) < kSingleStretchesMax + 100);
  for (uint64_t i = 0; i < kBlocks; i += 2) reservations.release(first + i * kStride, kPage);
  CHECK(mappings(first, end) < kSingleStretchesMax + 100);
  for (uint64_t i = 1; i < kBlocks; i += 2) reservations.release(first + i * kStride, kPage);
  CHECK(mappings(first, end) == 0);
}

TEST_CASE("Addresses reserved beside small blocks are given up for any mapping there") {
  const uint64_t place = scratch_addresses(3 * kChunk), chunk = (place + kChunk - 1) & ~(kChunk - 1);
  AddressReservations reservations(0);
  REQUIRE(reservations.reserve(chunk + 3 * kPage, kPage));
  CHECK(mapped(chunk));
  CHECK(mapped(chunk + kChunk - kPage));
  CHECK_FALSE(mapped(chunk + kChunk));
  REQUIRE(reservations.reserve(chunk + 5 * kPage, 4 * kPage));
  reservations.make_room(chunk + 10 * kPage, kPage);
  CHECK_FALSE(mapped(chunk));
  CHECK(mapped(chunk + 3 * kPage));
  CHECK(mapped(chunk + 8 * kPage));
  CHECK_FALSE(mapped(chunk + 10 * kPage));
  void* own = mmap(reinterpret_cast<void*>(chunk + 10 * kPage), kPage, PROT_READ,
                   MAP_PRIVATE | MAP_ANONYMOUS | MAP_FIXED, -1, 0);
  REQUIRE(own != MAP_FAILED);
  REQUIRE(reservations.reserve(chunk + 12 * kPage, kPage));  // beside a foreign mapping
  CHECK_FALSE(reservations.reserve(chunk + 9 * kPage, 2 * kPage));
  CHECK(reservations.reserved_bytes() == 6 * kPage);
  reservations.release(chunk + 12 * kPage, kPage);
  reservations.release(chunk + 5 * kPage, 4 * kPage);
  reservations.release(chunk + 3 * kPage, kPage);
  CHECK(mappings(chunk, chunk + kChunk) == 1);
  munmap(own, kPage);
}

TEST_CASE("Pages follow a model where chunks are held whole, too, and nothing stays behind") {
  for (uint32_t seed : {78u, 79u, 80u}) {
    INFO("seed " << seed);
    std::mt19937_64 random(seed);
    constexpr uint64_t kPages = 4 * kChunk / kPage;
    const uint64_t place = scratch_addresses(kPages * kPage + kChunk), first = (place + kChunk - 1) & ~(kChunk - 1);
    AddressReservations reservations(4);
    std::vector<int> uses(kPages, 0);
    std::vector<std::pair<uint64_t, uint64_t>> held;
    for (int step = 0; step < 1500; ++step) {
      if (random() % 50 == 0) reservations.make_room(first + random() % (kPages * kPage), random() % kChunk);
      if (held.empty() || random() % 2) {
        const uint64_t most = random() % 8 ? 6 * kPage : 3 * kChunk, base = random() % (kPages * kPage - most),
                       bytes = 1 + random() % most;
        REQUIRE(reservations.reserve(first + base, bytes));
        held.emplace_back(base, bytes);
        for (uint64_t page = base / kPage; page <= (base + bytes - 1) / kPage; ++page) ++uses[page];
      } else {
        const size_t which = random() % held.size();
        const auto [base, bytes] = held[which];
        held.erase(held.begin() + long(which));
        reservations.release(first + base, bytes);
        for (uint64_t page = base / kPage; page <= (base + bytes - 1) / kPage; ++page) --uses[page];
      }
      const auto used = uint64_t(std::count_if(uses.begin(), uses.end(), [](int count) { return count > 0; }));
      REQUIRE(reservations.reserved_bytes() == used * kPage);
      const uint64_t page = random() % kPages;
      if (uses[page]) REQUIRE(mapped(first + page * kPage));
    }
    for (auto [base, bytes] : held) reservations.release(first + base, bytes);
    CHECK(mappings(first, first + kPages * kPage) == 0);
  }
}

}  // namespace gpuwire::client
