// How the two ends of a Unix socket agree on going on in shared memory (ControlOrdinal::shared_memory). Before the
// first frame of a session or of a connection that carries one on; nothing behind the answer is read.
#pragma once

#include <memory>
#include <string>

#include "protocol/transport/shared_memory.hpp"
#include "protocol/transport/transport.hpp"

namespace gpuwire::transport {

// The result of the negotiation: shared memory, or the socket as it was, with the reason.
struct Agreed {
  std::unique_ptr<Transport> connection;
  std::string declined;
  bool lost = false;  // the socket has ended or is out of step: there is no going on
};

// The client: asks, and waits for the answer.
Agreed ask_for_shared_memory(std::unique_ptr<Transport> socket, Nanoseconds timeout);

// The server: waits for the client's first bytes, and gives it shared memory if they ask for it. Anything else is left
// to be read. `declined` is for the log, and empty where the client has not asked.
Agreed offer_shared_memory(std::unique_ptr<Transport> socket, Nanoseconds timeout,
                           uint32_t ring_bytes = shared_memory::kRingBytes);

}  // namespace gpuwire::transport
