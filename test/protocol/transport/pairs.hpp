// Connected pairs of every transport there is, for suites that run on all of them.
#pragma once

#include <cstdint>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "protocol/transport/transport.hpp"

namespace gpuwire::test {

using Ends = std::pair<std::unique_ptr<transport::Transport>, std::unique_ptr<transport::Transport>>;

struct PairKind {
  std::string name;
  Ends (*make)(uint64_t seed);
};
// tcp over loopback, a Unix socket pair, TLS over each of them, shared memory with rings of two sizes, simulated plain,
// and simulated with delays and short pieces.
const std::vector<PairKind>& pair_kinds();

// GPUWIRE_TEST_SEED, or a fixed one; printed once.
uint64_t test_seed();

}  // namespace gpuwire::test
