// The sizes of arrays and of their elements, requested from the server once for each array.
#pragma once

#include <cuda.h>

#include <cstddef>
#include <optional>
#include <unordered_map>

#include "client_stub/driver/state/call/caller.hpp"
#include "client_stub/driver/state/session/session_part.hpp"
#include "protocol/threads/mutex.hpp"

namespace gpuwire::client {

struct ArrayShape {
  // In elements; an extent that the array does not have is 1.
  size_t width = 0, height = 0, depth = 0;
  // 0 for a format whose elements are no single values.
  size_t element_bytes = 0;

  // Returns whether this many bytes, rows and slices from there lie inside.
  bool holds(size_t x_bytes, size_t y, size_t z, size_t width_bytes, size_t rows, size_t slices) const noexcept;
};

// The shapes of one session's arrays. Any thread; one leaf lock.
class ArrayShapes final : public SessionPart {
 public:
  explicit ArrayShapes(SessionParts& parts) noexcept : SessionPart(parts) {}

  // Stores the shape of a known handle's array. An error is the server's answer.
  CUresult find(const Caller& caller, CUarray array, ArrayShape& shape);

  void ended(SessionEnd) noexcept override {}      // a known value stays true
  void after_fork_in_child() noexcept override {}  // a child does not use it

 private:
  // If there are more, all are forgotten.
  static constexpr size_t kKeptMax = 4096;

  Mutex mutex_;
  // Handles are not reused for other arrays.
  std::unordered_map<CUarray, ArrayShape> shapes_ GUARDED_BY(mutex_);
};

// Checks whether this part of an array is inside it, for a copy that is not waited for: the caller gets the error at
// once (as with driver 580), and no later call does. Only the server knows about elements that are no single values.
CUresult check_in_array(const Caller& caller, CUarray array, size_t x_bytes, size_t y, size_t z, size_t width_bytes,
                        size_t rows, size_t slices);

}  // namespace gpuwire::client
