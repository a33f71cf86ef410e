// What a client sends that keeps the memory which its program has freed.
#include <doctest/doctest.h>

#include <string>
#include <vector>

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
