#include "protocol/cuda_abi/context_local_storage.hpp"

#include <doctest/doctest.h>

#include <thread>
#include <tuple>
#include <vector>

namespace {

using gpuwire::cuda_abi::ContextLocalStorage;

CUcontext context(uintptr_t number) { return reinterpret_cast<CUcontext>(number); }
void* pointer(uintptr_t number) { return reinterpret_cast<void*>(number); }

std::vector<std::tuple<CUcontext, void*, void*>> destroyed;
void note_destroyed(CUcontext context, void* key, void* value) { destroyed.emplace_back(context, key, value); }

}  // namespace

TEST_CASE("A value is found under its context and key alone") {
  ContextLocalStorage storage;
  REQUIRE(storage.put(context(1), pointer(10), pointer(100), nullptr) == CUDA_SUCCESS);
  void* value = pointer(7);
  CHECK(storage.get(context(2), pointer(10), &value) == CUDA_ERROR_INVALID_HANDLE);
  CHECK(storage.get(context(1), pointer(11), &value) == CUDA_ERROR_INVALID_HANDLE);
  CHECK(value == pointer(7));
  for (int again = 0; again < 2; ++again) {
    CHECK(storage.get(context(1), pointer(10), &value) == CUDA_SUCCESS);
    CHECK(value == pointer(100));
  }
}

TEST_CASE("A key can be put once and removed once") {
  ContextLocalStorage storage;
  CHECK(storage.remove(context(1), pointer(10)) == CUDA_ERROR_INVALID_HANDLE);
  CHECK(storage.put(context(1), pointer(10), pointer(100), nullptr) == CUDA_SUCCESS);
  CHECK(storage.put(context(1), pointer(10), pointer(101), nullptr) == CUDA_ERROR_INVALID_HANDLE);
  void* value = nullptr;
  CHECK(storage.get(context(1), pointer(10), &value) == CUDA_SUCCESS);
  CHECK(value == pointer(100));
  CHECK(storage.remove(context(1), pointer(10)) == CUDA_SUCCESS);
  CHECK(storage.get(context(1), pointer(10), &value) == CUDA_ERROR_INVALID_HANDLE);
}

TEST_CASE("Dropping a context calls the destructors of its values and of no other's") {
  destroyed.clear();
  ContextLocalStorage storage;
  storage.put(context(1), pointer(10), pointer(100), note_destroyed);
  storage.put(context(1), pointer(11), pointer(101), nullptr);
  storage.put(context(2), pointer(10), pointer(200), note_destroyed);
  void* value = nullptr;
  CHECK(storage.get(context(1), pointer(10), &value) == CUDA_SUCCESS);
  storage.drop_context(context(1));
  REQUIRE(destroyed.size() == 1);
  CHECK(destroyed[0] == std::tuple(context(1), pointer(10), pointer(100)));
  CHECK(storage.get(context(1), pointer(10), &value) == CUDA_ERROR_INVALID_HANDLE);
  CHECK(storage.get(context(2), pointer(10), &value) == CUDA_SUCCESS);
}

TEST_CASE("A value looked up by one thread is gone for it once another thread removed it") {
  ContextLocalStorage storage;
  storage.put(context(1), pointer(10), pointer(100), nullptr);
  void* value = nullptr;
  CHECK(storage.get(context(1), pointer(10), &value) == CUDA_SUCCESS);
  std::thread([&] {
    CHECK(storage.remove(context(1), pointer(10)) == CUDA_SUCCESS);
    CHECK(storage.put(context(1), pointer(10), pointer(300), nullptr) == CUDA_SUCCESS);
  }).join();
  CHECK(storage.get(context(1), pointer(10), &value) == CUDA_SUCCESS);
  CHECK(value == pointer(300));
}

TEST_CASE("Two storages do not share what threads remember") {
  ContextLocalStorage first, second;
  first.put(context(1), pointer(10), pointer(100), nullptr);
  void* value = nullptr;
  CHECK(first.get(context(1), pointer(10), &value) == CUDA_SUCCESS);
  CHECK(second.get(context(1), pointer(10), &value) == CUDA_ERROR_INVALID_HANDLE);
}
