// Words that streams and graphs write and wait for: which of them the client can answer for by itself.
#pragma once

#include <cuda.h>

#include <span>

#include "client_stub/driver/state/call/caller.hpp"

namespace gpuwire::client {

// A list of operations, as far as the client can judge it.
struct MemoryOperations {
  // The driver's answer to the call is known: success, unless `refused_when_run`.
  bool plain = true;
  // A word lies in memory that holds no such words, or that only the server's driver knows: it may refuse the operation
  // where that is sent to a stream, and so the launch of a graph that has it.
  bool refused_when_run = false;
  bool waits = false;
};

// Looks at the operations before they are sent: pinned memory that they name becomes known to the device, and so does
// what the words that they write may point to. An empty span is not plain.
MemoryOperations look_at(const Caller& caller, std::span<const CUstreamBatchMemOpParams> operations) noexcept;

// The graph, executable graph or capture `owner` has such a node now.
void note_in_graph(const Caller& caller, uint64_t owner, const MemoryOperations& operations);

}  // namespace gpuwire::client
