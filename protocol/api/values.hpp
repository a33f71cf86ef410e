// Conversions between values of the driver API and fields of messages, for the generated code on both ends.
#pragma once

#include <cuda.h>

#include <cstddef>
#include <cstdint>
#include <cstring>
#include <type_traits>

#include <capnp/blob.h>

#include "protocol/wire/limits.hpp"

namespace gpuwire {

// The maximum of variable data in one message. The remaining bytes are room for fixed fields and list headers.
inline constexpr size_t kDataBytesMax = size_t(wire::kMessageWordsMax) * 8 - 16 * 1024;
// The largest value of by_attribute parameters.
inline constexpr size_t kAttributeBytesMax = 16;

template <class T>
inline uint64_t word(T value) noexcept {
  if constexpr (std::is_pointer_v<T>) {
    return reinterpret_cast<uint64_t>(value);
  } else {
    return static_cast<uint64_t>(value);
  }
}

// Converts a message field to the C type. Handles and addresses may be pointers in C.
template <class T, class Wire>
inline T from_word(Wire value) noexcept {
  if constexpr (std::is_pointer_v<T>) {
    return reinterpret_cast<T>(value);
  } else {
    return static_cast<T>(value);
  }
}

inline capnp::Data::Reader bytes_of(const void* data, size_t bytes) noexcept {
  return capnp::Data::Reader(static_cast<const uint8_t*>(data), bytes);
}

// Returns whether an enumeration has this value. The value may come from a message and have any bits, so it is compared
// as a number.
template <class Enum>
inline bool holds(const Enum& field, Enum value) noexcept {
  static_assert(sizeof(Enum) == sizeof(int));
  int bits = 0;
  std::memcpy(&bits, &field, sizeof bits);
  return bits == static_cast<int>(value);
}

// Returns the size of the value behind the `value` pointer of get and set functions. 0: not an attribute of CUDA 13.0.
constexpr uint32_t attribute_bytes(CUmemPool_attribute attribute) noexcept {
  switch (attribute) {
    case CU_MEMPOOL_ATTR_REUSE_FOLLOW_EVENT_DEPENDENCIES:
    case CU_MEMPOOL_ATTR_REUSE_ALLOW_OPPORTUNISTIC:
    case CU_MEMPOOL_ATTR_REUSE_ALLOW_INTERNAL_DEPENDENCIES: return sizeof(int);
    case CU_MEMPOOL_ATTR_RELEASE_THRESHOLD:
    case CU_MEMPOOL_ATTR_RESERVED_MEM_CURRENT:
    case CU_MEMPOOL_ATTR_RESERVED_MEM_HIGH:
    case CU_MEMPOOL_ATTR_USED_MEM_CURRENT:
    case CU_MEMPOOL_ATTR_USED_MEM_HIGH: return sizeof(cuuint64_t);
    default: return 0;
  }
}

constexpr uint32_t attribute_bytes(CUgraphMem_attribute attribute) noexcept {
  switch (attribute) {
    case CU_GRAPH_MEM_ATTR_USED_MEM_CURRENT:
    case CU_GRAPH_MEM_ATTR_USED_MEM_HIGH:
    case CU_GRAPH_MEM_ATTR_RESERVED_MEM_CURRENT:
    case CU_GRAPH_MEM_ATTR_RESERVED_MEM_HIGH: return sizeof(cuuint64_t);
    default: return 0;
  }
}

}  // namespace gpuwire
