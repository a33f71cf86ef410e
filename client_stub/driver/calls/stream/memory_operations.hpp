// Memory operations, by which streams and graphs write words and wait for words: the client's check.
#pragma once

#include <cuda.h>

#include <span>

#include "client_stub/driver/state/call/caller.hpp"

namespace gpuwire::client {

// A list of operations, as far as the client can judge it.
struct MemoryOperations {
  // The driver's answer to the call is known: success, except for the case of `refused_when_run`.
  bool plain = true;
  // A word lies in memory that cannot hold such words, or that only the server's driver knows. The driver may then
  // refuse the operation in a stream, and refuse the launch of a graph that contains it.
  bool refused_when_run = false;
  // An operation waits for a word.
  bool waits = false;
};

// Checks the operations before they are sent. Makes pinned memory that they name known to the device, and memory to
// which the written words may point. An empty span is not plain.
MemoryOperations look_at(const Caller& caller, std::span<const CUstreamBatchMemOpParams> operations) noexcept;

// Notes that the graph, executable graph or capture `owner` contains a node of these operations.
void note_in_graph(const Caller& caller, uint64_t owner, const MemoryOperations& operations);

}  // namespace gpuwire::client
