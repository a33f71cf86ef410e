// A transport over a connected stream socket, TCP or Unix.
#pragma once

#include <cstdint>
#include <memory>
#include <string>

#include "protocol/transport/transport.hpp"

namespace gpuwire::transport {

// The buffer sizes of a session's sockets, if the system allows them. Over a long path, the bulk bandwidth is at most
// the buffer size divided by the round-trip time.
inline constexpr int kSocketBufferBytes = 4 << 20;
// How the kernel detects a peer that has gone without notice, while this side sends or is idle: by unacknowledged
// bytes, and by probes of a silent peer.
enum class LostPeer : uint8_t {
  // The connection cannot be replaced, so a peer that may only be slow gets kPeerLostMs.
  is_the_end,
  replaceable,  // the connection can be replaced without loss: kReplaceablePeerLostMs
  // The same time for a silent peer. Unacknowledged bytes are no evidence, because a live peer may be busy for long;
  // heartbeats detect a dead one.
  by_heartbeat,
};
// On loopback, where no packets are lost, unacknowledged bytes are no evidence either.
inline constexpr int kPeerLostMs = 60'000;
inline constexpr int kReplaceablePeerLostMs = 15'000;
void notice_lost_peer(int descriptor, LostPeer how);

// One end of a connection, as text that the other end can compare.
struct ConnectionEnd {
  // "192.0.2.7:41234"; for a Unix socket "unix:" and the path that the server has bound; empty: none.
  std::string address;
  // Identifies this boot of this machine. Set only for an address that cannot leave the machine.
  std::string machine;
  bool operator==(const ConnectionEnd&) const = default;
};
// Returns the identification of this boot of this machine, or an empty string if it cannot be read.
std::string this_machine();
// Return this process's end, and the other end as this machine's system sees it. `machine` is set for a loopback
// address.
ConnectionEnd own_end_of(int descriptor);
ConnectionEnd other_end_of(int descriptor, const std::string& machine);

// Sets the buffer sizes. For a TCP socket, called before it connects or listens, because the window scale is fixed
// then.
void size_socket_buffers(int descriptor, bool tcp);

// Takes over `descriptor`, makes it blocking and close-on-exec, and closes it in the destructor. A TCP socket gets
// TCP_NODELAY, keepalive and large buffers. Returns null if the descriptor is not a connected stream socket, or if too
// many files are open; the caller then still owns it.
std::unique_ptr<Transport> adopt_stream(int descriptor, std::string peer = {});

}  // namespace gpuwire::transport
