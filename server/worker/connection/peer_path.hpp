// The evidence that the end of a client's connection gives about the client: its program has ended, or will come back.
#pragma once

#include <cstdint>

#include "protocol/link/link.hpp"
#include "protocol/transport/stream.hpp"

namespace gpuwire::server {

// How a client's connection comes here.
enum class PeerPath : uint8_t {
  same_machine,  // a Unix socket, or loopback from the client's very own address: nothing lies between
  direct,  // another machine, whose own address for its end is the one that is seen here: nobody between has taken the
           // connection over to pass its bytes on
  indirect,  // addresses are translated, bytes are passed on (a proxy, a tunnel), or the client says nothing
};

// `seen`: the name of the client's end on this machine's system, `said`: its name on the client's system. A wrong name
// from a client harms its own session only.
PeerPath way_of(const transport::ConnectionEnd& seen, const transport::ConnectionEnd& said);

struct Graces {
  uint32_t resume_ms = 0;   // of a connection that was lost
  uint32_t hang_up_ms = 0;  // of a connection that was closed without the client's goodbye; a client that lives and
                            // reaches the server is back long before
};

// The time for which the session stays after it lost its connection in this way. 0: its program has ended. A client
// that lives never closes a connection, not even one that it gives up (it resets that), so an end that only its own
// system can have sent is the end of its process.
uint32_t stay_ms(PeerPath way, link::Loss loss, const Graces& graces);

}  // namespace gpuwire::server
