// The default paths of control sockets.
#pragma once

#include <filesystem>
#include <string>
#include <vector>

#include <tl/expected.hpp>

namespace gpuwire::server {

// Environment variable that names a server's socket for the commands.
inline constexpr const char* kControlVariable = "GPUWIRE_CONTROL";

// The folder of this user's servers: /run/gpuwire for root, for others $XDG_RUNTIME_DIR/gpuwire or /tmp/gpuwire-UID.
// Creates the folder; a folder that another user could write is an error.
tl::expected<std::filesystem::path, std::string> own_runtime_folder();
// Returns PID.sock in that folder.
tl::expected<std::filesystem::path, std::string> default_control_socket();

// Returns the sockets in those folders on which a server listens, root's first. Removes sockets of ended servers where
// that is allowed.
std::vector<std::filesystem::path> running_control_sockets();

// Returns `told` if it is not empty, else GPUWIRE_CONTROL, else the socket of the only running server. The error names
// the remedy.
tl::expected<std::filesystem::path, std::string> find_control_socket(const std::string& told);

}  // namespace gpuwire::server
