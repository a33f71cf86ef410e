// One call that gives the GPU work, as the gate sees it.
#pragma once

#include <cuda.h>

#include <cstdint>
#include <initializer_list>
#include <type_traits>

namespace gpuwire::server {

enum class WorkKind : uint8_t {
  compute,   // needs the compute slice of its context
  transfer,  // a copy over the host's link: a large one does not need it
};

struct Work {
  WorkKind kind = WorkKind::compute;
  CUstream stream = nullptr;
  // Equal for calls that take about the same time.
  uint64_t key = 0;
  // The bytes of a copy, if known.
  uint64_t bytes = 0;
};

// For generated code: parts of a key.
template <class T>
uint64_t word(T value) {
  if constexpr (std::is_pointer_v<T>) return reinterpret_cast<uintptr_t>(value);
  else return uint64_t(value);
}
inline uint64_t key_of(std::initializer_list<uint64_t> parts) {
  uint64_t key = 0x9e3779b97f4a7c15u;
  for (uint64_t part : parts) key = (key ^ part ^ (part >> 29)) * 0xbf58476d1ce4e5b9u, key ^= key >> 32;
  return key;
}

}  // namespace gpuwire::server
