// A connection inside TLS, as everything above `Transport` sees one.
#pragma once

#include <memory>

#include <tl/expected.hpp>

#include "protocol/tls/channel.hpp"
#include "protocol/transport/transport.hpp"

namespace gpuwire::tls {

// Puts `channel`, which has shaken hands over stream->descriptor(), in front of `stream`
// (protocol/transport/stream.hpp).
std::unique_ptr<transport::Transport> tls_transport(std::unique_ptr<transport::Transport> stream,
                                                    std::unique_ptr<TlsChannel> channel);

// The same without owning either, for a connection that goes on without this TLS: both outlive it.
std::unique_ptr<transport::Transport> tls_view(transport::Transport& stream, TlsChannel& channel);

}  // namespace gpuwire::tls
