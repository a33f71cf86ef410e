// The negotiation of RDMA between the two ends of a connection (wire/rdma.hpp, schema/handshake.capnp), before the
// first frame of a session or of a connection that resumes one. The peer is authenticated by then, and no third party
// sees the tokens.
#pragma once

#include <chrono>
#include <functional>
#include <memory>
#include <span>

#include "protocol/transport/rdma.hpp"
#include "protocol/transport/shared_memory_setup.hpp"
#include "protocol/transport/transport.hpp"

namespace gpuwire::transport {

// The longest wait until both ends have received the other's greeting over the fabric.
inline constexpr std::chrono::seconds kRdmaGreetingMax{5};

// The client's side: requests RDMA, tries it, and reports the result. `timeout` applies to each message of the server.
// Agreed::declined: the streams continue over the connection as it was, for this reason.
Agreed ask_for_rdma(std::unique_ptr<Transport> connection, std::shared_ptr<RdmaFabric> fabric, Nanoseconds timeout,
                    Nanoseconds greeting_max = kRdmaGreetingMax);

// Reads the available bytes without consuming them.
using Peek = std::function<IoResult(std::span<std::byte>)>;
// A Peek for a connection without TLS.
IoResult peek_socket(const Transport& connection, std::span<std::byte> out);

// The server's side: waits for the client's first bytes, and negotiates if they ask for RDMA. Other bytes stay unread.
// `fabric` is null if there is no RDMA, for the reason `why`. Agreed::declined is for the log, and empty if the client
// has not asked.
Agreed offer_rdma(std::unique_ptr<Transport> connection, const Peek& peek, std::shared_ptr<RdmaFabric> fabric,
                  const std::string& why, Nanoseconds timeout);

}  // namespace gpuwire::transport
