// The server's description of itself at session start, gathered in advance.
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

// Returns a schema::Welcome that is complete except for the session's id (16 zero bytes, which the session fills in).
// Queries the driver for every fact of every device, which takes milliseconds. A failed query is reported as its error,
// never as a made-up value.
std::unique_ptr<capnp::MallocMessageBuilder> build_welcome(const DriverLibrary& driver,
                                                           std::span<const ReplayEntry* const> calls);

// Returns the broker's description of the devices.
Inventory inventory_of(const DriverLibrary& driver);

// Replaces the devices' memory in the message by the session's allowance.
void show_limits(capnp::MallocMessageBuilder& welcome, const SessionSpec& spec);

}  // namespace gpuwire::server
