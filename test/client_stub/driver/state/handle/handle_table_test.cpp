#include <doctest/doctest.h>

#include <set>
#include <thread>
#include <vector>

#include "client_stub/driver/state/handle/handle_table.hpp"

using gpuwire::client::HandleTable;
using gpuwire::wire::HandleKind;

namespace {

// Tables are never destroyed, so the test stores them.
HandleTable* fresh_table() {
  static auto* const kept = new std::vector<HandleTable*>;
  return kept->emplace_back(new HandleTable());
}

}  // namespace

TEST_CASE("a handle is known from its creation until it is forgotten, and only as its own kind") {
  HandleTable* const table = fresh_table();
  int object = 0;
  uint64_t handle = table->create(HandleKind::stream, nullptr, &object);
  REQUIRE(handle != 0);
  CHECK(uint32_t(handle) != 0);
  CHECK(table->known(HandleKind::stream, handle));
  CHECK(table->find<int>(HandleKind::stream, handle) == &object);
  CHECK_FALSE(table->known(HandleKind::event, handle));
  CHECK_FALSE(table->known(HandleKind::stream, handle + 1));
  CHECK_FALSE(table->known(HandleKind::stream, 0));
  CHECK_FALSE(table->known(HandleKind::stream, ~0ull));
  void* attached = nullptr;
  CHECK(table->forget(HandleKind::stream, handle, &attached));
  CHECK(attached == &object);
  CHECK_FALSE(table->known(HandleKind::stream, handle));
  CHECK_FALSE(table->forget(HandleKind::stream, handle));
}

TEST_CASE("a number that comes back has another generation, so that the old handle stays unknown") {
  HandleTable* const table = fresh_table();
  std::set<uint64_t> seen;
  std::set<uint32_t> indices;
  for (int i = 0; i < 2000; ++i) {
    uint64_t handle = table->create(HandleKind::event, nullptr);
    REQUIRE(handle != 0);
    CHECK(seen.insert(handle).second);
    indices.insert(gpuwire::wire::handle_index(handle));
    REQUIRE(table->forget(HandleKind::event, handle));
  }
  CHECK(indices.size() < 2000);
  for (uint64_t handle : seen) CHECK_FALSE(table->known(HandleKind::event, handle));
}

TEST_CASE("every known handle is visited once") {
  HandleTable* const table = fresh_table();
  std::set<uint64_t> given;
  for (int i = 0; i < 3000; ++i) given.insert(table->create(HandleKind::module, nullptr));
  uint64_t gone = *given.begin();
  given.erase(gone);
  table->forget(HandleKind::module, gone);
  std::set<uint64_t> visited;
  table->for_each(HandleKind::module, [&](uint64_t handle, void*) { CHECK(visited.insert(handle).second); });
  CHECK(visited == given);
}

TEST_CASE("each handle knows its session, and those of one are visited apart from the others'") {
  HandleTable* const table = fresh_table();
  alignas(16) char one_place[16], other_place[16];  // sessions are only compared
  auto* one = reinterpret_cast<gpuwire::client::ServerSession*>(one_place);
  auto* other = reinterpret_cast<gpuwire::client::ServerSession*>(other_place);
  std::set<uint64_t> given;
  for (int i = 0; i < 100; ++i) {
    given.insert(table->create(HandleKind::graph, one));
    uint64_t foreign = table->create(HandleKind::graph, other);
    CHECK(table->session(HandleKind::graph, foreign) == other);
  }
  std::set<uint64_t> visited;
  table->for_each(HandleKind::graph, one, [&](uint64_t handle, void*) { CHECK(visited.insert(handle).second); });
  CHECK(visited == given);
  const uint64_t gone = *given.begin();
  CHECK(table->session(HandleKind::graph, gone) == one);
  REQUIRE(table->forget(HandleKind::graph, gone));
  CHECK(table->session(HandleKind::graph, gone) == nullptr);
}

TEST_CASE("threads that create, look up and forget at once never meet a foreign object") {
  HandleTable* const table = fresh_table();
  constexpr int kThreads = 4, kRounds = 5000;
  std::vector<std::thread> threads;
  std::atomic<int> wrong{0};
  for (int t = 0; t < kThreads; ++t) {
    threads.emplace_back([&, t] {
      int mine = t;
      for (int i = 0; i < kRounds; ++i) {
        uint64_t handle = table->create(HandleKind::stream, nullptr, &mine);
        if (handle == 0 || table->find<int>(HandleKind::stream, handle) != &mine) ++wrong;
        void* object = nullptr;
        if (!table->forget(HandleKind::stream, handle, &object) || object != &mine) ++wrong;
      }
    });
  }
  for (auto& thread : threads) thread.join();
  CHECK(wrong == 0);
}
