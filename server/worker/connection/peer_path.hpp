// Decides by the end of a client's connection whether the client's program has ended or may reconnect.
#pragma once

#include <cstdint>

#include "protocol/link/link.hpp"
#include "protocol/transport/stream.hpp"

namespace gpuwire::server {

// The path of a client's connection.
enum class PeerPath : uint8_t {
  // The client is on this machine: the connection is a Unix socket, or loopback from the client's own address.
  same_machine,
  // The client is on another machine, and its own address for its end is the one that is seen here: no machine between
  // has taken the connection over.
  direct,
  // Addresses are translated, bytes are relayed (a proxy, a tunnel), or the client does not report its address.
  indirect,
};

// Returns the path of a connection. `seen` is the address of the client's end as seen by this machine, `said` the
// address that the client reports. A false report harms only the client's own session.
PeerPath way_of(const transport::ConnectionEnd& seen, const transport::ConnectionEnd& said);

// The times for which a session stays without a connection.
struct Graces {
  // After a lost connection.
  uint32_t resume_ms = 0;
  // After a connection that was closed without the client's goodbye. A client that lives and reaches the server
  // reconnects long before.
  uint32_t hang_up_ms = 0;
};

// Returns the time for which the session stays after a loss of this kind. 0: the client's program has ended. A living
// client never closes a connection in order (it resets a connection that it gives up), so an orderly end that only the
// client's own system can have sent is the end of its process.
uint32_t stay_ms(PeerPath way, link::Loss loss, const Graces& graces);

}  // namespace gpuwire::server
