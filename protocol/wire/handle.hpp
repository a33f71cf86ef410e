// Handles: small numbers that the client chooses and that both sides look up in tables.
#pragma once

#include <cstdint>

namespace gpuwire::wire {

// The kind is part of the number, so that a stream that is passed as an event is detected without a look-up.
enum class HandleKind : uint8_t {
  none = 0,
  context = 1,
  stream = 2,
  event = 3,
  module = 4,
  function = 5,
  library = 6,
  kernel = 7,
  graph = 8,
  graph_node = 9,
  graph_exec = 10,
  array = 11,
  mipmapped_array = 12,
  memory_pool = 13,
  link_state = 14,
  green_context = 15,
  memory_allocation = 16,  // CUmemGenericAllocationHandle
  texture_object = 17,
  surface_object = 18,
  texture_reference = 19,
  surface_reference = 20,
  user_object = 21,
  external_memory = 22,
  external_semaphore = 23,
  graphics_resource = 24,
  async_callback = 25,
  logs_callback = 26,
  device_resource_desc = 27,
  graph_device_node = 28,
};
inline constexpr unsigned kHandleKinds = 29;

// The kind is in bits 42 to 46, the generation in bits 24 to 39, the index in bits 0 to 23. So a handle is below 2^47,
// like a pointer of user space, and is never a valid pointer by accident.
inline constexpr uint64_t kHandleIndexBits = 24;
inline constexpr uint64_t kHandleGenerationBits = 16;

constexpr uint64_t make_handle(HandleKind kind, uint32_t index, uint16_t generation) {
  return (uint64_t(kind) << 42) | (uint64_t(generation) << kHandleIndexBits) | index;
}
constexpr HandleKind handle_kind(uint64_t handle) {
  uint64_t kind = handle >> 42;
  return kind < kHandleKinds ? HandleKind(kind) : HandleKind::none;
}
constexpr uint32_t handle_index(uint64_t handle) { return handle & ((1u << kHandleIndexBits) - 1); }
constexpr uint16_t handle_generation(uint64_t handle) { return (handle >> kHandleIndexBits) & 0xffff; }

// Streams that need no creation: CUDA's own constants travel unchanged.
inline constexpr uint64_t kStreamNull = 0;
inline constexpr uint64_t kStreamLegacy = 1;  // CU_STREAM_LEGACY

}  // namespace gpuwire::wire
