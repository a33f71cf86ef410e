// The kernel's restrictions of gpuwire-suspender, before it opens the driver. Its system calls are limited afterwards
// (server/confinement/process_rights.hpp).
#pragma once

namespace gpuwire::server {

// No new privileges, no core files, no descriptors but the broker's channel; the process ends with the broker.
// `keeps_rights`: root's privileges stay, because the workers have users of their own. Precondition: the process has
// one thread.
void confine_suspender(bool keeps_rights);

}  // namespace gpuwire::server
