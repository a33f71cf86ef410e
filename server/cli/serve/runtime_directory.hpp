// The folder for a server's state that outlives its process.
#pragma once

#include <filesystem>
#include <vector>

#include <tl/expected.hpp>

#include "server/config/listen_address.hpp"

namespace gpuwire::server {

// A folder in that of the user's servers, named by the address: clients come back there, and so does the server that
// takes sessions over. Empty: the server picks a free port, so nobody could come back to it.
tl::expected<std::filesystem::path, std::string> default_runtime_directory(const std::vector<ListenAddress>& listen);

}  // namespace gpuwire::server
