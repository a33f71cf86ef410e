// Arrival is a visitor's connection on its way from the process that speaks TLS to the one that serves the page.
#pragma once

#include <optional>
#include <string>

#include "server/base/owned_descriptor.hpp"
#include "server/web/site.hpp"

namespace gpuwire::server::web {

struct Arrival {
  // The socket for the bytes inside TLS.
  OwnedDescriptor socket;
  // The visitor's address.
  std::string peer;
  Certificate certificate;
};

// `pair`: of the type SOCK_SEQPACKET. Neither waits.
// False: the peer has gone, or does not keep up.
bool send_arrival(int pair, const Arrival& arrival);
// `over`: the peer has gone. Without an arrival and not over: there is none now, or it came without its socket.
std::optional<Arrival> receive_arrival(int pair, bool& over);

}  // namespace gpuwire::server::web
