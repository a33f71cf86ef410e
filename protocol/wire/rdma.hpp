// The negotiation of RDMA before the first frame of either stream.
#pragma once

#include "protocol/wire/frame.hpp"
#include "protocol/wire/ordinals.hpp"

namespace gpuwire::wire {

// A server's PrefaceFlag: the client may request RDMA. The value must not be reused.
inline constexpr uint32_t kPrefaceRdma = 16;
// The ordinal of frames with schema/handshake.capnp's Rdma. The two sides send them in turns, the client first, until
// the client has said whether the streams continue over RDMA. The value must not be reused.
inline constexpr ControlOrdinal kRdmaOrdinal{12};

}  // namespace gpuwire::wire
