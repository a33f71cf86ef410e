// The negotiation of RDMA between the two ends of a connection (wire/rdma.hpp, schema/handshake.capnp), before the
// first frame of a session or of a connection that resumes one. The peer is authenticated by then; nobody else sees the
// tokens.
#pragma once

#include <chrono>
#include <functional>
#include <memory>
#include <span>

#include "protocol/transport/rdma.hpp"
#include "protocol/transport/shared_memory_setup.hpp"
#include "protocol/transport/transport.hpp"

namespace gpuwire::transport {

// Until both have received the other's greeting over the fabric.
inline constexpr std::chrono::seconds kRdmaGreetingMax{5};

// The client: asks, tries, says how it went. `timeout`: for each of the server's words. Agreed::declined: the streams
// go on over the connection as it was, and why.
Agreed ask_for_rdma(std::unique_ptr<Transport> connection, std::shared_ptr<RdmaFabric> fabric, Nanoseconds timeout,
                    Nanoseconds greeting_max = kRdmaGreetingMax);

// The available bytes, without consuming them.
using Peek = std::function<IoResult(std::span<std::byte>)>;
// For a connection without TLS.
IoResult peek_socket(const Transport& connection, std::span<std::byte> out);

// The server: waits for the client's first bytes, and agrees if they ask for it. Anything else is left to be read.
// `fabric`: null, and `why`, where there is none. Agreed::declined is for the log, and empty where the client has not
// asked.
Agreed offer_rdma(std::unique_ptr<Transport> connection, const Peek& peek, std::shared_ptr<RdmaFabric> fabric,
                  const std::string& why, Nanoseconds timeout);

}  // namespace gpuwire::transport
