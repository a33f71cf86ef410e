// The negotiation of shared memory over a Unix socket (ControlOrdinal::shared_memory), before the first frame of a
// session or of a connection that resumes one. Neither side reads bytes behind the answer.
#pragma once

#include <memory>
#include <string>

#include "protocol/transport/shared_memory.hpp"
#include "protocol/transport/transport.hpp"

namespace gpuwire::transport {

// The result of the negotiation: shared memory, or the socket as it was with the reason.
struct Agreed {
  std::unique_ptr<Transport> connection;
  std::string declined;
  // The socket has ended or is out of step, and cannot be used any more.
  bool lost = false;
};

// The client's side: asks, and waits for the answer.
Agreed ask_for_shared_memory(std::unique_ptr<Transport> socket, Nanoseconds timeout);

// The server's side: waits for the client's first bytes, and creates shared memory if they ask for it. Other bytes stay
// unread. `declined` is for the log, and empty if the client has not asked.
Agreed offer_shared_memory(std::unique_ptr<Transport> socket, Nanoseconds timeout,
                           uint32_t ring_bytes = shared_memory::kRingBytes);

}  // namespace gpuwire::transport
