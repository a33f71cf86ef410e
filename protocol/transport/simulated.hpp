// A connection inside one process, with the faults of a bad network and without a clock: the same seed makes the same
// decisions. Delays are counted in polls of the connection, and a wait that only time could end returns at once.
#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <utility>

#include "protocol/transport/transport.hpp"

namespace gpuwire::transport {

struct SimulatedOptions {
  uint64_t seed = 1;
  // One send or receive moves at most this many bytes, and often fewer. 0: no limit.
  size_t piece_bytes_max = 0;
  // The maximum of bytes in flight in one direction. A sender that is further ahead would block.
  size_t window_bytes = 256 * 1024;
  // The receiver sees sent bytes after at most this many of its polls.
  unsigned delay_polls_max = 0;
  // The connection breaks after this many bytes have been delivered from first to second, or from second to first. ~0:
  // never.
  uint64_t cut_first_to_second = ~0ull;
  uint64_t cut_second_to_first = ~0ull;
  // Called when the connection has broken after these bytes, on the thread that received the last byte. Lock: the
  // connection's lock is held.
  std::function<void()> was_cut = {};
  // After this many bytes have been sent in one direction, all later bytes and ends vanish in both directions, and
  // neither side is notified. ~0: never.
  uint64_t swallow_first_to_second = ~0ull;
  uint64_t swallow_second_to_first = ~0ull;
};

// Threads: as for every transport. The ends may be destroyed in any order.
std::pair<std::unique_ptr<Transport>, std::unique_ptr<Transport>> simulated_pair(const SimulatedOptions& options);

}  // namespace gpuwire::transport
