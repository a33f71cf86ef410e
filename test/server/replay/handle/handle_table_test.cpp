#include <doctest/doctest.h>

#include <map>
#include <random>

#include "protocol/wire/limits.hpp"
#include "server/replay/replay.hpp"

using namespace gpuwire;
using server::HandleTable;
using wire::HandleKind;

namespace {
void* native(uintptr_t value) { return reinterpret_cast<void*>(value); }
}  // namespace

TEST_CASE("a handle is found under its own kind, index and generation only") {
  HandleTable table;
  uint64_t handle = wire::make_handle(HandleKind::stream, 7, 3);
  REQUIRE(table.insert(HandleKind::stream, handle, native(42)));
  void* found = nullptr;
  CHECK(table.find(HandleKind::stream, handle, found));
  CHECK(found == native(42));
  CHECK_FALSE(table.find(HandleKind::event, handle, found));
  CHECK_FALSE(table.find(HandleKind::stream, wire::make_handle(HandleKind::stream, 7, 4), found));
  CHECK_FALSE(table.find(HandleKind::stream, wire::make_handle(HandleKind::stream, 8, 3), found));
  CHECK_FALSE(table.find(HandleKind::stream, wire::make_handle(HandleKind::stream, (1u << 24) - 1, 3), found));
  CHECK_FALSE(table.find(HandleKind::none, 0, found));
  CHECK_FALSE(table.find(HandleKind::stream, ~uint64_t{0}, found));
}

TEST_CASE("a number that is taken cannot be taken again, and a destroyed one is not found") {
  HandleTable table;
  uint64_t first = wire::make_handle(HandleKind::event, 0, 1), second = wire::make_handle(HandleKind::event, 0, 2);
  REQUIRE(table.insert(HandleKind::event, first, native(1)));
  CHECK_FALSE(table.insert(HandleKind::event, first, native(2)));
  CHECK_FALSE(table.insert(HandleKind::event, second, native(2)));
  CHECK_FALSE(table.insert(HandleKind::stream, first, native(2)));
  CHECK_FALSE(table.erase(HandleKind::event, second));
  CHECK(table.erase(HandleKind::event, first));
  CHECK_FALSE(table.erase(HandleKind::event, first));
  void* found = nullptr;
  CHECK_FALSE(table.find(HandleKind::event, first, found));
  CHECK(table.insert(HandleKind::event, second, native(2)));
  CHECK(table.size() == 1);
}

TEST_CASE("the newest handles are visited first") {
  HandleTable table;
  for (uint32_t index : {5u, 2000u, 1u})
    table.insert(HandleKind::graph, wire::make_handle(HandleKind::graph, index, 1), native(index));
  std::vector<uintptr_t> seen;
  table.for_each(HandleKind::graph, [&](uint64_t handle, void* value) {
    seen.push_back(reinterpret_cast<uintptr_t>(value));
    table.erase(HandleKind::graph, handle);
  });
  CHECK(seen == std::vector<uintptr_t>{1, 2000, 5});
  CHECK(table.size() == 0);
}

TEST_CASE("the handles of a context die with it, and those that belong to none stay") {
  HandleTable table;
  uint64_t stream = wire::make_handle(HandleKind::stream, 1, 1), other = wire::make_handle(HandleKind::stream, 2, 1);
  uint64_t library = wire::make_handle(HandleKind::library, 1, 1);
  table.set_context(11, 11);
  table.insert(HandleKind::stream, stream, native(1));
  table.insert(HandleKind::library, library, native(2));
  table.set_context(12, 12);
  table.insert(HandleKind::stream, other, native(3));
  table.erase_context(11);
  void* found = nullptr;
  CHECK_FALSE(table.find(HandleKind::stream, stream, found));
  CHECK(table.find(HandleKind::stream, other, found));
  CHECK(table.find(HandleKind::library, library, found));
  CHECK(table.size() == 2);
}

TEST_CASE("a client that scatters its numbers is stopped before the table grows large") {
  HandleTable table;
  size_t accepted = 0;
  for (unsigned kind = 1; kind < wire::kHandleKinds; ++kind) {
    for (uint32_t index = 0; index < (1u << 24); index += 1024) {
      accepted += table.insert(HandleKind(kind), wire::make_handle(HandleKind(kind), index, 0), native(1));
    }
  }
  CHECK(accepted < 6000);
}

TEST_CASE("the table agrees with a map under random insertions, lookups and removals") {
  const unsigned seed = 20240611;
  INFO("seed ", seed);
  std::mt19937 random(seed);
  HandleTable table;
  std::map<uint64_t, void*> model;
  for (int step = 0; step < 20000; ++step) {
    auto kind = HandleKind(1 + random() % 3);
    uint64_t handle = wire::make_handle(kind, random() % 200, uint16_t(random() % 3));
    uint64_t any_generation = handle & ~(uint64_t{0xffff} << wire::kHandleIndexBits);
    bool taken = false;
    for (uint16_t generation = 0; generation < 3; ++generation)
      taken |= model.count(any_generation | uint64_t(generation) << wire::kHandleIndexBits);
    switch (random() % 3) {
      case 0: {
        bool inserted = table.insert(kind, handle, native(step + 1));
        REQUIRE(inserted == !taken);
        if (inserted) model[handle] = native(step + 1);
        break;
      }
      case 1: REQUIRE(table.erase(kind, handle) == (model.erase(handle) == 1)); break;
      default: {
        void* found = nullptr;
        REQUIRE(table.find(kind, handle, found) == (model.count(handle) == 1));
        if (found) REQUIRE(found == model[handle]);
      }
    }
    REQUIRE(table.size() == model.size());
  }
}

TEST_CASE("a look-up of a pending handle waits for it, and finds the result") {
  HandleTable table;
  const uint64_t made = wire::make_handle(HandleKind::module, 1, 1),
                 failed = wire::make_handle(HandleKind::module, 2, 1);
  REQUIRE(table.insert_pending(HandleKind::module, made));
  REQUIRE(table.insert_pending(HandleKind::module, failed));
  CHECK_FALSE(table.insert(HandleKind::module, made, native(3)));
  CHECK(table.size() == 2);
  size_t shown = 0;
  table.for_each(HandleKind::module, [&](uint64_t, void*) { ++shown; });
  CHECK(shown == 0);
  unsigned waits = 0;
  table.await_pending_with([&] {
    if (++waits == 2) table.settle(HandleKind::module, made, native(7));
    if (waits == 3) table.settle(HandleKind::module, failed, nullptr);
  });
  void* found = nullptr;
  CHECK(table.find(HandleKind::module, made, found));
  CHECK(found == native(7));
  CHECK(waits == 2);
  CHECK_FALSE(table.find(HandleKind::module, failed, found));
  CHECK(waits == 3);
  CHECK(table.size() == 1);
}

TEST_CASE("an object for a handle that has gone with its context is not inserted") {
  HandleTable table;
  const uint64_t handle = wire::make_handle(HandleKind::module, 1, 1),
                 next = wire::make_handle(HandleKind::module, 1, 2);
  table.set_context(5, 5);
  REQUIRE(table.insert_pending(HandleKind::module, handle));
  table.erase_context(5);
  REQUIRE(table.insert(HandleKind::module, next, native(2)));
  table.settle(HandleKind::module, handle, native(1));
  table.settle(HandleKind::module, next, native(3));  // is not pending
  void* found = nullptr;
  CHECK_FALSE(table.find(HandleKind::module, handle, found));
  REQUIRE(table.find(HandleKind::module, next, found));
  CHECK(found == native(2));
}
