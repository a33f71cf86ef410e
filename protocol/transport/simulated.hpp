// A connection inside one process, with the faults of a bad network and no clock: what a seed decided once, it decides
// again. Delays are counted in looks at the connection, and a wait that only time could end ends at once.
#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <utility>

#include "protocol/transport/transport.hpp"

namespace gpuwire::transport {

struct SimulatedOptions {
  uint64_t seed = 1;
  // At most so many bytes are moved by one send or receive, and often fewer. 0: no limit.
  size_t piece_bytes_max = 0;
  // Bytes that are under way in one direction; a sender that is further ahead would block.
  size_t window_bytes = 256 * 1024;
  // Sent bytes are seen by the receiver after up to so many of its looks.
  unsigned delay_looks_max = 0;
  // The connection breaks once so many bytes have been delivered in the direction first to second, or second to first.
  // ~0: never.
  uint64_t cut_first_to_second = ~0ull;
  uint64_t cut_second_to_first = ~0ull;
  // Told when it has broken there, by whoever took the last byte. With the connection's lock.
  std::function<void()> was_cut = {};
  // Once so many bytes have been sent in one direction, what comes behind them vanishes, in both directions, as do
  // ends: nobody is told. ~0: never.
  uint64_t swallow_first_to_second = ~0ull;
  uint64_t swallow_second_to_first = ~0ull;
};

// Both ends may be used by several threads, as every transport. They may be destroyed in any order.
std::pair<std::unique_ptr<Transport>, std::unique_ptr<Transport>> simulated_pair(const SimulatedOptions& options);

}  // namespace gpuwire::transport
