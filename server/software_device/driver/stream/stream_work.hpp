// The pieces of streams and graphs: descriptions of work that can be carried out at once, later, or again and again.
#pragma once

#include <cstdint>
#include <memory>
#include <variant>
#include <vector>

#include <cuda.h>

#include "server/software_device/driver/module/image_object.hpp"
#include "server/software_device/driver/graph/graph_condition.hpp"
#include "server/software_device/driver/module/module_object.hpp"
#include "server/software_device/driver/stream/stream_object.hpp"

namespace gpuwire::software_device {

class Context;

// Rows of `width_bytes`, `height` to a slice, `depth` slices. Device addresses are host addresses.
struct CopyWork {
  uint64_t target = 0;
  uint64_t source = 0;
  size_t width_bytes = 0;
  size_t height = 1;
  size_t depth = 1;
  size_t target_pitch = 0,
         target_slice = 0;  // bytes from row to row and from slice to slice; unused when there is only one
  size_t source_pitch = 0, source_slice = 0;
  std::shared_ptr<const std::vector<uint8_t>> staged;  // when set, `source` points into it

  // Arrays that the ends lie in, if any: their memory, and their names.
  std::shared_ptr<const ArrayObject> target_array, source_array;

  bool empty() const noexcept { return width_bytes == 0 || height == 0 || depth == 0; }
};

// Writes `value`, of 1, 2 or 4 bytes, `width` times in each of `height` rows.
struct FillWork {
  uint64_t target = 0;
  uint32_t value = 0;
  uint32_t element_bytes = 1;
  size_t width = 0;
  size_t height = 1;
  size_t pitch = 0;
  bool checked = true;  // false: its addresses are looked at when it is carried out
};

struct KernelWork {
  std::shared_ptr<Function> function;      // of the context it runs in
  CUkernel kernel = nullptr;               // when it was launched as one
  std::shared_ptr<ModuleInstance> module;  // keeps variables alive under the launch
  Dim3 grid, block;
  Dim3 cluster;
  bool explicit_cluster = false;
  uint32_t dynamic_shared_bytes = 0;
  bool cooperative = false;
  uint32_t processors = kAllProcessors;
  std::vector<uint8_t> parameters;
};

struct HostWork {
  CUhostFn function = nullptr;
  void* user = nullptr;
};

// One after the other; checked (memory_operations.hpp).
struct MemoryOperationsWork {
  std::vector<CUstreamBatchMemOpParams> operations;
};

struct EmptyWork {};

struct ConditionalBodies;
// One of several lists of work, or one again and again, as the condition says.
struct ConditionalWork {
  std::shared_ptr<Condition> condition;
  CUgraphConditionalNodeType type = CU_GRAPH_COND_TYPE_IF;
  std::shared_ptr<const ConditionalBodies> bodies;
};

using Work = std::variant<EmptyWork, CopyWork, FillWork, KernelWork, HostWork, MemoryOperationsWork, ConditionalWork>;

struct ConditionalBodies {
  std::vector<std::vector<Work>> work;  // each in an order that satisfies its graph
};

// Carries the work out in the calling thread. The error is the context's fault-to-be.
CUresult carry_out(Context& context, const Work& work);

// The same when its turn has come in a stream (its id, or kStreamOfGraphs): after the pause that it makes on a slow
// device (slow_work.hpp).
CUresult carry_out_in_turn(Context& context, const Work& work, uint64_t stream);

// Appends the work to the stream, or to the graph that the stream is being captured into. Returns at once.
CUresult enqueue(Context& context, Stream& stream, Work work);

// Appends the work and waits for it. CUDA_ERROR_STREAM_CAPTURE_UNSUPPORTED while the stream is being captured.
CUresult enqueue_and_wait(Context& context, Stream& stream, const Work& work);

}  // namespace gpuwire::software_device
