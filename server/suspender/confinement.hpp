// The kernel's restrictions of gpuwire-suspender.
#pragma once

#include <filesystem>
#include <string>

#include <tl/expected.hpp>

#include "server/confinement/system_calls.hpp"

namespace gpuwire::server {

// Before the driver is opened: files, no new privileges, no core files, ends with the broker. `library`: the software
// device's. `keeps_rights`: root's privileges stay, because the workers have users of their own. Returns the rules that
// this kernel could not enforce. Precondition: the process has one thread.
tl::expected<std::string, std::string> confine_suspender(const std::filesystem::path& library, bool keeps_rights);

}  // namespace gpuwire::server
