// The options of a command that opens sessions: the server, the user's credentials, the session's resources. The
// options only set the environment for later steps; the environment and the configuration files
// (client_configuration.hpp) then need no values of their own.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

#include <tl/expected.hpp>

namespace gpuwire {
class CommandLine;
}

namespace gpuwire::launcher {

struct SessionOptions {
  // As in docs/cli.md, or several with commas; empty: not set.
  std::string server;
  // A profile of the configuration files; empty: not set.
  std::string use;
  // Files; empty: not set.
  std::string identity, authorities, token;
  // 0: not set.
  unsigned gpus = 0;
  // 0: not set.
  uint64_t memory_bytes = 0;
  // Empty: not set.
  std::string gpu_type;
  bool no_wait = false;
  // Auto, tcp, shm or rdma; empty: not set.
  std::string transport;
  bool no_progress = false;
};

// `resources`: also adds the options about a program's resources and the wait for them.
void add_session_options(CommandLine& app, SessionOptions& options, bool resources);
// Returns whether the word is an option that takes the following word.
bool takes_value(std::string_view word);
// Sets GPUWIRE_SERVER and the other variables, each from the first source that has it: the option, the profile of an
// option, the environment, the user's configuration, the system's. File names become absolute, because a program may
// change its folder before its first call. The error is a line for the user: a mistake in a file, a missing server, or
// an invalid server.
tl::expected<void, std::string> set_environment(const SessionOptions& options);
// The servers of GPUWIRE_SERVER, at least one. Precondition: set_environment() has succeeded.
std::vector<std::string> named_servers();

// For --help.
inline constexpr const char* kSessionEnvironment =
    "Environment:\n"
    "  GPUWIRE_SERVER          the server, or several, when --server is not given\n"
    "  GPUWIRE_USE             the profile of the configuration, when --use is not given\n"
    "  GPUWIRE_IDENTITY        file with certificate and key, when --identity is not given\n"
    "  GPUWIRE_CA              file with the server's CA, when --ca is not given\n"
    "  GPUWIRE_TOKEN_FILE      file with a token, when --token-file is not given\n"
    "  GPUWIRE_TRANSPORT       auto, tcp, shm or rdma, when --transport is not given\n";
inline constexpr const char* kResourceEnvironment =
    "  GPUWIRE_GPUS            how many GPUs, when --gpus is not given\n"
    "  GPUWIRE_MEMORY          how much memory on each, when --memory is not given\n"
    "  GPUWIRE_GPU_TYPE        the type of GPU, when --gpu-type is not given\n"
    "  GPUWIRE_QUEUE           off: as --no-wait\n"
    "  GPUWIRE_PROGRESS        off: as --no-progress\n"
    "  GPUWIRE_CONNECT_PATIENCE  how long a program tries to reach a server that takes no connections; 10s unless "
    "set\n";
inline constexpr const char* kConfigurationFiles =
    "\n"
    "Files:\n"
    "  ~/.config/gpuwire/config.toml   settings for what neither an option nor the environment says\n"
    "  /etc/gpuwire/client.toml        the same for every user of the machine; your own file comes first\n";

}  // namespace gpuwire::launcher
