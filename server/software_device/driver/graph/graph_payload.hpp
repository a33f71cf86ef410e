// Converts between the parameters of graph nodes, as programs pass and query them, and their payloads. The checks are
// those of the plain calls.
#pragma once

#include <cuda.h>
#include <tl/expected.hpp>

#include "server/software_device/driver/graph/graph_object.hpp"

namespace gpuwire::software_device {

using PayloadOrError = tl::expected<NodePayload, CUresult>;

PayloadOrError payload_of(Context& context, const CUDA_KERNEL_NODE_PARAMS_v1& parameters);
PayloadOrError payload_of(Context& context, const CUDA_KERNEL_NODE_PARAMS_v2& parameters);
PayloadOrError payload_of(const CUDA_MEMCPY3D& parameters);
PayloadOrError payload_of(const CUDA_MEMSET_NODE_PARAMS_v1& parameters);
PayloadOrError payload_of(CUhostFn function, void* user);
PayloadOrError memory_operations_payload(const CUstreamBatchMemOpParams* operations, unsigned count, unsigned flags);
// Clones the graph. Lock: graph_mutex is held.
PayloadOrError child_payload(CUgraph graph);
// Allocates the memory and sets the address in `parameters`.
PayloadOrError payload_of(Context& context, CUDA_MEM_ALLOC_NODE_PARAMS& parameters);
PayloadOrError free_payload(CUdeviceptr address);
// The payload has new, empty bodies. Lock: graph_mutex is held.
PayloadOrError conditional_payload(const CUDA_CONDITIONAL_NODE_PARAMS& parameters);
// Returns true for graphs that allocate or have conditions: CUDA_ERROR_NOT_SUPPORTED.
bool cannot_be_copied(const Graph& graph);
// The generic form. Lock: graph_mutex is held.
PayloadOrError payload_of(Context& context, CUgraphNodeParams& parameters);

// Sets `out` if the node's payload has that type. Pointers among the parameters stay valid until the node is changed.
bool describe(GraphNode& node, CUDA_KERNEL_NODE_PARAMS_v2& out);
bool describe(const GraphNode& node, CUDA_MEMCPY3D& out);
bool describe(const GraphNode& node, CUDA_MEMSET_NODE_PARAMS_v1& out);
bool describe(const GraphNode& node, CUDA_HOST_NODE_PARAMS& out);
bool describe(const GraphNode& node, CUDA_MEM_ALLOC_NODE_PARAMS& out);
bool describe(const GraphNode& node, CUdeviceptr& out);

CUgraphNodeType type_of(const NodePayload& payload);

}  // namespace gpuwire::software_device
