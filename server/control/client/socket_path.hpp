// Where control sockets lie when nobody has said where.
#pragma once

#include <filesystem>
#include <string>
#include <vector>

#include <tl/expected.hpp>

namespace gpuwire::server {

// Environment variable that names a server's socket for the commands.
inline constexpr const char* kControlVariable = "GPUWIRE_CONTROL";

// The folder of this user's servers: /run/gpuwire for root, for others $XDG_RUNTIME_DIR/gpuwire or /tmp/gpuwire-UID.
// Makes it; a folder that somebody else could write is refused.
tl::expected<std::filesystem::path, std::string> own_runtime_folder();
// PID.sock there.
tl::expected<std::filesystem::path, std::string> default_control_socket();

// The sockets in those folders on which a server listens, root's first. Those that servers which are gone have left are
// removed where that is allowed.
std::vector<std::filesystem::path> running_control_sockets();

// `told` if it is not empty, else GPUWIRE_CONTROL, else the only server that runs. The error names the remedy.
tl::expected<std::filesystem::path, std::string> find_control_socket(const std::string& told);

}  // namespace gpuwire::server
