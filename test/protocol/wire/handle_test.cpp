#include <doctest/doctest.h>

#include <initializer_list>

#include "protocol/wire/handle.hpp"

using namespace gpuwire::wire;

TEST_CASE("a handle gives back what it was made of, and looks like an address of user space") {
  for (unsigned kind = 1; kind < kHandleKinds; ++kind)
    for (uint32_t index : {0u, 1u, (1u << kHandleIndexBits) - 1})
      for (uint16_t generation : {uint16_t(0), uint16_t(1), uint16_t(0xffff)}) {
        uint64_t handle = make_handle(HandleKind(kind), index, generation);
        CHECK(handle_kind(handle) == HandleKind(kind));
        CHECK(handle_index(handle) == index);
        CHECK(handle_generation(handle) == generation);
        CHECK(handle < 1ull << 47);
        CHECK(handle > kStreamLegacy + 1);
      }
}

TEST_CASE("numbers that are no handles have no kind") {
  CHECK(handle_kind(0) == HandleKind::none);
  CHECK(handle_kind(1) == HandleKind::none);
  CHECK(handle_kind(~0ull) == HandleKind::none);
  CHECK(handle_kind(uint64_t(kHandleKinds) << 42) == HandleKind::none);
}
