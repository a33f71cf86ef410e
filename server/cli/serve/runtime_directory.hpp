// The places of a server's state that outlives its process.
#pragma once

#include <filesystem>
#include <vector>

#include <tl/expected.hpp>

#include "server/config/configuration.hpp"
#include "server/config/listen_address.hpp"

namespace gpuwire::server {

// Returns a folder within the folder of the user's servers. The folder is named by the address, at which clients
// reconnect and the next server takes over the sessions. Empty: the server uses a free port, so no client could
// reconnect.
tl::expected<std::filesystem::path, std::string> default_runtime_directory(const std::vector<ListenAddress>& listen);

// Returns the file of the drained GPUs, in the folder of the budgets' file, named by the address. Empty: the server
// uses a free port, so no later server would find it.
std::filesystem::path default_drain_file(const Configuration& configuration, const std::vector<ListenAddress>& listen);

}  // namespace gpuwire::server
