// Between the parameters of graph nodes, as programs give and ask for them, and their payloads. The checks are those of
// the plain calls.
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
// Clones the graph. With graph_mutex held.
PayloadOrError child_payload(CUgraph graph);
// Allocates, and fills in the address.
PayloadOrError payload_of(Context& context, CUDA_MEM_ALLOC_NODE_PARAMS& parameters);
PayloadOrError free_payload(CUdeviceptr address);
// With new, empty bodies. With graph_mutex held.
PayloadOrError conditional_payload(const CUDA_CONDITIONAL_NODE_PARAMS& parameters);
// Graphs that allocate or decide: CUDA_ERROR_NOT_SUPPORTED.
bool cannot_be_copied(const Graph& graph);
// The generic form. With graph_mutex held.
PayloadOrError payload_of(Context& context, CUgraphNodeParams& parameters);

// Fills in the node's payload, when it is of that type. Pointers among the parameters stay valid while the node is not
// changed.
bool describe(GraphNode& node, CUDA_KERNEL_NODE_PARAMS_v2& out);
bool describe(const GraphNode& node, CUDA_MEMCPY3D& out);
bool describe(const GraphNode& node, CUDA_MEMSET_NODE_PARAMS_v1& out);
bool describe(const GraphNode& node, CUDA_HOST_NODE_PARAMS& out);
bool describe(const GraphNode& node, CUDA_MEM_ALLOC_NODE_PARAMS& out);
bool describe(const GraphNode& node, CUdeviceptr& out);

CUgraphNodeType type_of(const NodePayload& payload);

}  // namespace gpuwire::software_device
