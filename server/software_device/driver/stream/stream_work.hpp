// The pieces of work of streams and graphs: descriptions that can be executed at once, later, or repeatedly.
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

// Rows of `width_bytes`, `height` rows per slice, `depth` slices. Device addresses are host addresses.
struct CopyWork {
  uint64_t target = 0;
  uint64_t source = 0;
  size_t width_bytes = 0;
  size_t height = 1;
  size_t depth = 1;
  // Bytes from row to row and from slice to slice; not used if there is only one.
  size_t target_pitch = 0, target_slice = 0;
  size_t source_pitch = 0, source_slice = 0;
  std::shared_ptr<const std::vector<uint8_t>> staged;  // if set, `source` points into it

  // The arrays that contain the ends, if any. They keep the memory alive and have the handles.
  std::shared_ptr<const ArrayObject> target_array, source_array;

  bool empty() const noexcept { return width_bytes == 0 || height == 0 || depth == 0; }
};

// Writes `value`, which has 1, 2 or 4 bytes, `width` times in each of `height` rows.
struct FillWork {
  uint64_t target = 0;
  uint32_t value = 0;
  uint32_t element_bytes = 1;
  size_t width = 0;
  size_t height = 1;
  size_t pitch = 0;
  bool checked = true;  // false: the addresses are checked at execution
};

struct KernelWork {
  std::shared_ptr<Function> function;      // of the context in which it runs
  CUkernel kernel = nullptr;               // set if it was launched as a CUkernel
  std::shared_ptr<ModuleInstance> module;  // keeps the variables alive during the launch
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

// Operations that run one after the other. They have been checked (memory_operations.hpp).
struct MemoryOperationsWork {
  std::vector<CUstreamBatchMemOpParams> operations;
};

struct EmptyWork {};

struct ConditionalBodies;
// One of several lists of work, or one list repeatedly, as the condition says.
struct ConditionalWork {
  std::shared_ptr<Condition> condition;
  CUgraphConditionalNodeType type = CU_GRAPH_COND_TYPE_IF;
  std::shared_ptr<const ConditionalBodies> bodies;
};

using Work = std::variant<EmptyWork, CopyWork, FillWork, KernelWork, HostWork, MemoryOperationsWork, ConditionalWork>;

struct ConditionalBodies {
  std::vector<std::vector<Work>> work;  // each in an order that satisfies its graph
};

// Executes the work in the calling thread. An error becomes the context's fault.
CUresult carry_out(Context& context, const Work& work);

// Executes the work when its turn in a stream has come (the stream's id, or kStreamOfGraphs), after the pause of a slow
// device (slow_work.hpp).
CUresult carry_out_in_turn(Context& context, const Work& work, uint64_t stream);

// Appends the work to the stream, or to the graph into which the stream is captured. Returns at once.
CUresult enqueue(Context& context, Stream& stream, Work work);

// Appends the work and waits for it. Returns CUDA_ERROR_STREAM_CAPTURE_UNSUPPORTED if the stream is being captured.
CUresult enqueue_and_wait(Context& context, Stream& stream, const Work& work);

}  // namespace gpuwire::software_device
