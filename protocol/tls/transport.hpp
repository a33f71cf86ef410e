// A TLS connection behind the interface `Transport`.
#pragma once

#include <memory>

#include <tl/expected.hpp>

#include "protocol/tls/channel.hpp"
#include "protocol/transport/transport.hpp"

namespace gpuwire::tls {

// Returns a transport that sends and receives through `channel`, which has done its handshake over
// stream->descriptor(), above `stream` (protocol/transport/stream.hpp).
std::unique_ptr<transport::Transport> tls_transport(std::unique_ptr<transport::Transport> stream,
                                                    std::unique_ptr<TlsChannel> channel);

// Returns the same without owning either, for a connection that continues without this TLS. Both outlive the result.
std::unique_ptr<transport::Transport> tls_view(transport::Transport& stream, TlsChannel& channel);

}  // namespace gpuwire::tls
