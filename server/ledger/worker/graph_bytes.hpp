// The memory of graphs on the host and on devices, by their nodes, edges and chains, as measured on an H200 with driver
// 580.159 (the process's own pages and cuMemGetInfo, around ten instances of 5,000 nodes).
#pragma once

#include <cuda.h>

#include <cstddef>
#include <cstdint>
#include <functional>
#include <map>
#include <unordered_map>
#include <vector>

namespace gpuwire::server {

struct DriverTable;

// A node of a graph takes at most 1,952 bytes, and twice a kernel's parameters (9,923 with 4,000 bytes of parameters).
inline constexpr uint64_t kGraphNodeHostBytes = 2u << 10;
inline constexpr uint64_t kGraphEdgeHostBytes = 64;
// A node of an instance takes 5,800 bytes of host memory and 2,642 of the device's in a chain of kernels, 13,785 and
// 8,933 with 4,000 bytes of parameters; an empty node takes 2,125 and none.
inline constexpr uint64_t kExecNodeHostBytes = 6u << 10;
inline constexpr uint64_t kExecNodeDeviceBytes = 11u << 8;
inline constexpr uint64_t kParameterCopies = 2;
// Independent nodes run concurrently, on queues of their own. Such a chain takes, in addition to its nodes, 113,246
// bytes of the device and 15,900 of host memory for an instance of one kernel, 114,672 and 13,900 for each of 5,000.
inline constexpr uint64_t kExecChainHostBytes = 16u << 10;
inline constexpr uint64_t kExecChainDeviceBytes = 116u << 10;
// The assumed size of unknown parameters of a kernel.
inline constexpr uint64_t kUnknownParameterBytes = 4096;

struct GraphBytes {
  // The graph.
  uint64_t host = 0;
  // An instance of it.
  uint64_t exec_host = 0;
  // An instance's memory on a device, by context; null: the current context.
  std::map<CUcontext, uint64_t> exec_device;
  // The bytes of its allocation nodes, by device.
  std::map<CUdevice, uint64_t> allocations;
};

// Queries the driver about graphs and changes nothing. Used for one operation, because it caches the answers about
// kernels.
class GraphReader {
 public:
  // The bodies of a conditional node, which the driver reports only to the maker of the node.
  using Bodies = std::function<std::vector<CUgraph>(CUgraphNode)>;

  GraphReader(const DriverTable& driver, Bodies bodies) : driver_(driver), bodies_(std::move(bodies)) {}

  // Reads the graph and all graphs nested in it. Calls `visit`, if given, for each node.
  GraphBytes read(CUgraph graph, const std::function<void(CUgraphNode)>& visit = {}) const;
  // Returns the bytes of a node with its edges and the graphs in it.
  uint64_t node_host_bytes(CUgraphNode node) const;
  // Returns the bytes of a kernel node without its edges: of a future node, or of an existing one.
  uint64_t kernel_host_bytes(CUfunction function, CUkernel kernel) const;
  uint64_t kernel_host_bytes(CUgraphNode node) const;

 private:
  struct Kernel {
    CUcontext context = nullptr;
    uint64_t parameter_bytes = 0;
  };
  void read_one(CUgraph graph, GraphBytes& bytes, std::vector<CUgraph>& inner,
                const std::function<void(CUgraphNode)>& visit) const;
  void add_inner(CUgraphNode node, CUgraphNodeType type, std::vector<CUgraph>& inner) const;
  Kernel kernel_of(CUgraphNode node) const;
  uint64_t parameter_bytes(CUfunction function, CUkernel kernel) const;
  uint64_t ask_parameter_bytes(CUfunction function, CUkernel kernel) const;

  const DriverTable& driver_;
  const Bodies bodies_;
  // By function or kernel.
  mutable std::unordered_map<const void*, uint64_t> parameter_bytes_;
};

}  // namespace gpuwire::server
