// A connection inside one process, with the faults of a bad network and no clock: the same seed makes the same
// decisions. Delays are counted in polls of the connection, and a wait that only time could end ends at once.
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
  // Bytes that are under way in one direction; a sender that is further ahead would block.
  size_t window_bytes = 256 * 1024;
  // The receiver sees sent bytes after up to this many of its polls.
  unsigned delay_polls_max = 0;
  // The connection breaks once this many bytes have been delivered in the direction first to second, or second to
  // first. ~0: never.
  uint64_t cut_first_to_second = ~0ull;
  uint64_t cut_second_to_first = ~0ull;
  // Called when it has broken there, on the thread that took the last byte. With the connection's lock.
  std::function<void()> was_cut = {};
  // Once this many bytes have been sent in one direction, all later bytes vanish, in both directions, and so do ends:
  // nobody is notified. ~0: never.
  uint64_t swallow_first_to_second = ~0ull;
  uint64_t swallow_second_to_first = ~0ull;
};

// Both ends may be used by several threads, as every transport. They may be destroyed in any order.
std::pair<std::unique_ptr<Transport>, std::unique_ptr<Transport>> simulated_pair(const SimulatedOptions& options);

}  // namespace gpuwire::transport
