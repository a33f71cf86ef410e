// Reads and writes single control frames over a connection, and reads no byte behind a frame. Used for the messages
// before the streams of a session begin or continue.
#pragma once

#include <cstdint>
#include <functional>
#include <string>

#include <capnp/message.h>
#include <tl/expected.hpp>

#include "protocol/transport/transport.hpp"
#include "protocol/wire/ordinals.hpp"

namespace gpuwire::transport {

// Returns false if the connection did not accept the frame within `timeout`.
bool send_control(Transport& connection, wire::ControlOrdinal ordinal, capnp::MessageBuilder& message,
                  Nanoseconds timeout);
// Receives exactly one frame, which has this ordinal and at most `words_max` words. `timeout` bounds the wait for each
// part of the frame. The error describes in one line what arrived instead.
tl::expected<void, std::string> receive_control(Transport& connection, wire::ControlOrdinal ordinal, uint32_t words_max,
                                                Nanoseconds timeout,
                                                const std::function<void(capnp::MessageReader&)>& read);

}  // namespace gpuwire::transport
