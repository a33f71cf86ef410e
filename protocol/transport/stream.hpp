// A transport over a connected stream socket, TCP or Unix.
#pragma once

#include <cstdint>
#include <memory>
#include <string>

#include "protocol/transport/transport.hpp"

namespace gpuwire::transport {

// The buffer sizes of a session's sockets, if the system allows that much. Bulk bandwidth over a long path is at most
// the buffer divided by the round trip.
inline constexpr int kSocketBufferBytes = 4 << 20;
// The system's detection of a peer that is gone without notice, while sending or idle: by unacknowledged bytes, and by
// probes of a silent peer.
enum class LostPeer : uint8_t {
  is_the_end,    // nothing replaces the connection, so one that may only be slow gets kPeerLostMs
  replaceable,   // nothing is lost with it: kReplaceablePeerLostMs
  by_heartbeat,  // the same for who is silent. That our bytes are not taken says nothing: a peer that lives may be busy
                 // for long, and heartbeats find who does not
};
// On loopback, where nothing gets lost, bytes that are not taken say nothing either.
inline constexpr int kPeerLostMs = 60'000;
inline constexpr int kReplaceablePeerLostMs = 15'000;
void notice_lost_peer(int descriptor, LostPeer how);

// One end of a connection, as text that the other end can compare.
struct ConnectionEnd {
  std::string
      address;  // "192.0.2.7:41234"; of a Unix socket "unix:" and the path that its server has bound; empty: none
  std::string machine;  // of an address that cannot leave the machine: what tells this run of it from every other
  bool operator==(const ConnectionEnd&) const = default;
};
// This run of this machine. Empty: it may not be read.
std::string this_machine();
// This process's end, and the other one as this machine's system sees it; `machine`: what an address of loopback gets.
ConnectionEnd own_end_of(int descriptor);
ConnectionEnd other_end_of(int descriptor, const std::string& machine);

// Sets the buffers. A TCP socket needs it before it connects or listens, because the window scale is fixed then.
void size_socket_buffers(int descriptor, bool tcp);

// Takes over `descriptor` (closes it in the end), makes it blocking and close-on-exec; a TCP socket gets TCP_NODELAY,
// keepalive and large buffers. Null: the descriptor is no connected stream socket, or there are too many open files; it
// is then still the caller's.
std::unique_ptr<Transport> adopt_stream(int descriptor, std::string peer = {});

}  // namespace gpuwire::transport
