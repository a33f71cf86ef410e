#include "client_stub/driver/state/managed_memory/managed_heap.hpp"

#include <doctest/doctest.h>

#include <map>
#include <random>

namespace gpuwire::client {

TEST_CASE("Small allocations are aligned, do not overlap, and stay in their block") {
  ManagedHeap heap;
  CHECK_FALSE(heap.take(1));
  heap.add_block(0x4000'0000);
  auto first = heap.take(1), second = heap.take(513), third = heap.take(512);
  CHECK(*first == 0x4000'0000);
  CHECK(*second == 0x4000'0200);
  CHECK(*third == 0x4000'0600);
  CHECK_FALSE(heap.give(*second, 513));
  CHECK(*heap.take(1000) == *second);
}

TEST_CASE("A block that is no longer used is given back, but for the last") {
  ManagedHeap heap;
  heap.add_block(ManagedHeap::kBlockBytes);
  heap.add_block(2 * ManagedHeap::kBlockBytes);  // adjacent: never joined
  std::map<uint64_t, uint64_t> taken;
  while (auto address = heap.take(ManagedHeap::kLargestBytes)) taken[*address] = ManagedHeap::kLargestBytes;
  CHECK(taken.size() == 2 * ManagedHeap::kBlockBytes / ManagedHeap::kLargestBytes);
  unsigned given_back = 0;
  for (auto [address, bytes] : taken) given_back += heap.give(address, bytes).has_value();
  CHECK(given_back == 1);
}

TEST_CASE("Taking and giving at random never hands out the same bytes twice") {
  constexpr unsigned kSeed = 7;
  std::mt19937 random(kSeed);
  ManagedHeap heap;
  uint64_t next_block = ManagedHeap::kBlockBytes;
  std::map<uint64_t, uint64_t> taken;
  for (int step = 0; step < 20000; ++step) {
    if (taken.empty() || random() % 5 < 3) {
      uint64_t bytes = 1 + random() % (random() % 10 ? 2000 : ManagedHeap::kLargestBytes);
      auto address = heap.take(bytes);
      if (!address) {
        heap.add_block(next_block);
        next_block += ManagedHeap::kBlockBytes;
        continue;
      }
      auto after = taken.lower_bound(*address);
      REQUIRE((after == taken.end() || *address + bytes <= after->first));
      REQUIRE((after == taken.begin() || std::prev(after)->first + std::prev(after)->second <= *address));
      taken.emplace(*address, bytes);
    } else {
      auto at = std::next(taken.begin(), long(random() % taken.size()));
      heap.give(at->first, at->second);
      taken.erase(at);
    }
  }
}

}  // namespace gpuwire::client
