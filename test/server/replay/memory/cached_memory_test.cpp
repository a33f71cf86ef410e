// The messages of a client that caches memory that its program has freed or may want next.
#include <doctest/doctest.h>

#include <functional>
#include <vector>

#include "protocol/wire/limits.hpp"
#include "schema/session.capnp.h"
#include "test/server/replay/fake_session.hpp"

using namespace gpuwire;
using namespace gpuwire::test;
using wire::SessionOrdinal;

TEST_CASE("In the place of a free the context's work is waited for, and what is wrong with it told later") {
  FakeDriver driver;
  FakeSession session{driver};
  session.enter_primary();
  driver.log.clear();
  session.post<schema::AwaitRest>(SessionOrdinal::await_rest, [](auto) {});
  CHECK(driver.count("cuCtxSynchronize") == 1);
  CHECK(driver.count("cuMemFree_v2") == 0);
  CHECK(session.failed.empty());
  driver.failures["cuCtxSynchronize"] = CUDA_ERROR_ILLEGAL_ADDRESS;
  session.post<schema::AwaitRest>(SessionOrdinal::await_rest, [](auto) {});
  CHECK(session.failed.size() == 1);
  driver.failures.clear();
}

TEST_CASE("Whether the client may keep memory is passed on, whatever context there is") {
  std::vector<bool> said;
  FakeDriver driver;
  FakeSession session{driver, {.keeping_memory = [&](bool keeps) { said.push_back(keeps); }}};
  session.post<schema::KeepingMemory>(SessionOrdinal::keeping_memory, [](auto params) { params.setKeeps(true); });
  session.post<schema::KeepingMemory>(SessionOrdinal::keeping_memory, [](auto) {});
  CHECK(said == std::vector{true, false});
  CHECK(session.failed.empty());
}

namespace {

void ask_to_free(FakeSession& session, std::initializer_list<uint64_t> addresses) {
  session.post<schema::FreeAtRest>(SessionOrdinal::free_at_rest, [&](auto params) {
    auto list = params.initAddresses(unsigned(addresses.size()));
    for (unsigned i = 0; i < addresses.size(); ++i) list.set(i, addresses.begin()[i]);
  });
}
bool told_freed(const FakeSession& session) {
  return session.notices(wire::NoticeOrdinal::freed_at_rest).back()->as<schema::FreedAtRest>().getFreed();
}
void ask_ahead(FakeSession& session, uint64_t bytes, uint32_t count) {
  session.post<schema::AllocateAhead>(SessionOrdinal::allocate_ahead, [&](auto params) {
    params.setBytes(bytes);
    params.setCount(count);
  });
}
void ask_as_profiled(FakeSession& session, const std::vector<uint64_t>& sizes) {
  session.post<schema::AllocateKnown>(SessionOrdinal::allocate_known, [&](auto params) {
    auto list = params.initSizes(unsigned(sizes.size()));
    for (unsigned i = 0; i < sizes.size(); ++i) list.set(i, sizes[i]);
  });
}
size_t told_ahead(const FakeSession& session) {
  auto told = session.notices(wire::NoticeOrdinal::allocated_ahead).back()->as<schema::AllocatedAhead>();
  for (uint64_t address : told.getAddresses()) CHECK(address != 0);
  return told.getAddresses().size();
}

}  // namespace

TEST_CASE("Kept blocks are freed at rest: with work in any stream none is, and nothing is waited for") {
  FakeDriver driver;
  FakeSession session{driver};
  session.enter_primary();
  session.give(wire::HandleKind::stream, driver.make());
  driver.log.clear();
  ask_to_free(session, {0x1000, 0, 0x2000});
  CHECK(told_freed(session));
  CHECK(driver.count("cuMemFree_v2") == 2);
  CHECK(driver.count("cuCtxSynchronize") == 0);
  driver.log.clear();
  SUBCASE("work") { driver.failures["cuStreamQuery"] = CUDA_ERROR_NOT_READY; }
  SUBCASE("a capture") { driver.capturing = true; }
  SUBCASE("a context that is of no more use") { driver.failures["cuStreamQuery"] = CUDA_ERROR_ILLEGAL_ADDRESS; }
  SUBCASE("a context that there is not") { session.frame_context = 77; }
  ask_to_free(session, {0x3000});
  CHECK_FALSE(told_freed(session));
  CHECK(driver.count("cuMemFree_v2") == 0);
  CHECK(session.failed.empty());
  driver.failures.clear();
}

TEST_CASE("More blocks in one frame than a client may keep, or ask for ahead, end the session") {
  FakeDriver driver;
  FakeSession session{driver};
  session.enter_primary();
  CHECK_THROWS_AS(
      session.post<schema::FreeAtRest>(SessionOrdinal::free_at_rest,
                                       [](auto params) { params.initAddresses(wire::kCachedBlocksMax + 1); }),
      server::ProtocolFault);
  CHECK_THROWS_AS(ask_ahead(session, 1, wire::kPrefetchedBlocksMax + 1), server::ProtocolFault);
  CHECK_THROWS_AS(ask_as_profiled(session, std::vector<uint64_t>(wire::kProfiledBlocksMax + 1, 1)),
                  server::ProtocolFault);
}

TEST_CASE("Blocks are allocated ahead as long as the grant and the driver have room, and nothing of it is an error") {
  FakeDriver driver;
  int room = 100;
  FakeSession session{driver, {.within_grant = [&](const std::function<CUresult()>& allocate) {
                        return room-- > 0 ? allocate() : CUDA_ERROR_OUT_OF_MEMORY;
                      }}};
  session.enter_primary();
  ask_ahead(session, 4096, 5);
  CHECK(told_ahead(session) == 5);
  CHECK(driver.count("cuMemAlloc_v2 4096") == 5);
  room = 3;
  ask_ahead(session, 4096, 5);
  CHECK(told_ahead(session) == 3);
  room = 100;
  driver.failures["cuMemAlloc_v2"] = CUDA_ERROR_OUT_OF_MEMORY;
  ask_ahead(session, 4096, 5);
  CHECK(told_ahead(session) == 0);
  driver.failures.clear();
  ask_ahead(session, 0, 5);
  CHECK(told_ahead(session) == 0);
  session.frame_context = 77;
  ask_ahead(session, 4096, 5);
  CHECK(told_ahead(session) == 0);
  CHECK(session.failed.empty());
}

TEST_CASE("Where nobody grants memory nothing is allocated ahead") {
  FakeDriver driver;
  FakeSession session{driver};
  session.enter_primary();
  ask_ahead(session, 4096, 5);
  CHECK(told_ahead(session) == 0);
  ask_as_profiled(session, {4096});
  CHECK(told_ahead(session) == 0);
  CHECK(driver.count("cuMemAlloc_v2") == 0);
}

TEST_CASE(
    "Of what earlier runs of the program had as many blocks come, in order, as fit into a quarter of what is free") {
  FakeDriver driver;
  int room = 100;
  FakeSession session{driver, {.beyond_grant = [&](const std::function<CUresult()>& allocate) {
                        return room-- > 0 ? allocate() : CUDA_ERROR_OUT_OF_MEMORY;
                      }}};
  session.enter_primary();
  driver.free_bytes = 40'000;
  ask_as_profiled(session, {4096, 3000, 2904, 1});
  CHECK(told_ahead(session) == 3);
  CHECK(driver.count("cuMemAlloc_v2 3000") == 1);
  ask_as_profiled(session, {4096, 10'000, 1});
  CHECK(told_ahead(session) == 1);
  driver.free_bytes = 64ull << 30;
  ask_as_profiled(session, {wire::kProfiledBytesMax, 1});
  CHECK(told_ahead(session) == 1);
  ask_as_profiled(session, {wire::kProfiledBytesMax + 1});
  CHECK(told_ahead(session) == 0);
  room = 2;
  ask_as_profiled(session, {1, 2, 3, 4});
  CHECK(told_ahead(session) == 2);
  room = 100;
  ask_as_profiled(session, {1, 0, 2});
  CHECK(told_ahead(session) == 1);
  driver.failures["cuMemAlloc_v2"] = CUDA_ERROR_OUT_OF_MEMORY;
  ask_as_profiled(session, {1});
  CHECK(told_ahead(session) == 0);
  driver.failures = {{"cuMemGetInfo_v2", CUDA_ERROR_UNKNOWN}};
  ask_as_profiled(session, {1});
  CHECK(told_ahead(session) == 0);
  driver.failures.clear();
  session.frame_context = 77;
  ask_as_profiled(session, {1});
  CHECK(told_ahead(session) == 0);
  CHECK(session.failed.empty());
}
