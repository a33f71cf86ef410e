// What the server tells about itself at session start, gathered ahead.
#pragma once

#include <memory>
#include <span>
#include <string>

#include <capnp/message.h>

#include "server/ipc/inventory.hpp"
#include "server/ipc/session_spec.hpp"
#include "server/replay/replay.hpp"

namespace gpuwire::server {

class DriverLibrary;

// A schema::Welcome, complete but for the session's id (16 zero bytes, for the session to fill in). Asks the driver for
// every fact of every device; takes milliseconds. A query that fails is told as its error, never as a made-up value.
std::unique_ptr<capnp::MallocMessageBuilder> build_welcome(const DriverLibrary& driver,
                                                           std::span<const ReplayEntry* const> calls);

// What the broker is told of the devices.
Inventory inventory_of(const DriverLibrary& driver);

// The devices' memory in the message becomes what the session may have of it.
void show_limits(capnp::MallocMessageBuilder& welcome, const SessionSpec& spec);

}  // namespace gpuwire::server
