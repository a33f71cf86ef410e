// Connected pairs of every transport there is, for suites that run on all of them.
#pragma once

#include <cstdint>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include <tl/expected.hpp>

#include "protocol/transport/rdma.hpp"
#include "protocol/transport/transport.hpp"

namespace gpuwire::test {

using Ends = std::pair<std::unique_ptr<transport::Transport>, std::unique_ptr<transport::Transport>>;

struct PairKind {
  std::string name;
  Ends (*make)(uint64_t seed);
};
// tcp over loopback, a Unix socket pair, TLS over each of them, shared memory with rings of two sizes, simulated plain,
// simulated with delays and short pieces, and RDMA over UCX's tcp and its shared memory, where the plug-in is.
const std::vector<PairKind>& pair_kinds();

// RDMA over these of UCX's transports (UCX_TLS); the same each time. The error: why there is none.
tl::expected<std::shared_ptr<transport::RdmaFabric>, std::string> rdma_fabric(const std::string& over);
std::string rdma_plugin();

// GPUWIRE_TEST_SEED, or a fixed one; printed once.
uint64_t test_seed();

}  // namespace gpuwire::test
