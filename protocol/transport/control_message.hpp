// Reads and writes one control frame at a time over a connection, without a byte behind it: for the messages before the
// streams of a session begin or continue.
#pragma once

#include <cstdint>
#include <functional>
#include <string>

#include <capnp/message.h>
#include <tl/expected.hpp>

#include "protocol/transport/transport.hpp"
#include "protocol/wire/ordinals.hpp"

namespace gpuwire::transport {

// False: the connection did not take it within `timeout`.
bool send_control(Transport& connection, wire::ControlOrdinal ordinal, capnp::MessageBuilder& message,
                  Nanoseconds timeout);
// Exactly one frame, of this ordinal and at most this many words; the wait for each part of it is bounded by `timeout`.
// The error describes what arrived instead, in one line.
tl::expected<void, std::string> receive_control(Transport& connection, wire::ControlOrdinal ordinal, uint32_t words_max,
                                                Nanoseconds timeout,
                                                const std::function<void(capnp::MessageReader&)>& read);

}  // namespace gpuwire::transport
