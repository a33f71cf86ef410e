// The negotiation of RDMA before the first frame of either stream.
#pragma once

#include "protocol/wire/frame.hpp"
#include "protocol/wire/ordinals.hpp"

namespace gpuwire::wire {

// A PrefaceFlag, the server's: the client may ask for RDMA. Nobody else's flag from here on.
inline constexpr uint32_t kPrefaceRdma = 16;
// Frames with schema/handshake.capnp's Rdma, in turns, the client first, until it has said whether the streams go on by
// RDMA. Nobody else's ordinal from here on.
inline constexpr ControlOrdinal kRdmaOrdinal{12};

}  // namespace gpuwire::wire
