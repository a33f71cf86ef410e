// A transport over a connected stream socket, TCP or Unix.
#pragma once

#include <memory>

#include "protocol/transport/transport.hpp"

namespace gpuwire::transport {

// What the sockets of a session are set to, if the system allows that much. Bulk bandwidth over a long path is at most the buffer divided
// by the round trip.
inline constexpr int kSocketBufferBytes = 4 << 20;
// A peer that is gone without a word is noticed after about this time, sending or idle.
inline constexpr int kPeerLostMs = 60'000;

// The same where a connection can be replaced, so that nothing is lost with one that is only slow.
inline constexpr int kReplaceablePeerLostMs = 15'000;
void notice_lost_peer(int descriptor, int within_ms);

// Sets the buffers. A TCP socket needs it before it connects or listens, because the window scale is fixed then.
void size_socket_buffers(int descriptor, bool tcp);

// Takes over `descriptor` (closes it in the end), makes it blocking and close-on-exec; a TCP socket gets TCP_NODELAY, keepalive and
// large buffers. Null: the descriptor is no connected stream socket, or there are too many open files; it is then still the caller's.
std::unique_ptr<Transport> adopt_stream(int descriptor, std::string peer = {});

}  // namespace gpuwire::transport
