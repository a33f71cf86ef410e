// The options of a command that opens sessions: which server, who the user is, what the session is to have. They only
// set the environment for what comes after, where neither the environment nor a configuration file
// (client_configuration.hpp) has to say anything then.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>

#include <tl/expected.hpp>

namespace CLI {
class App;
}

namespace gpuwire::launcher {

struct SessionOptions {
  std::string server;                        // as docs/cli.md says; empty: not said
  std::string use;                           // a profile of the configuration files; empty: not said
  std::string identity, authorities, token;  // files; empty: not said
  unsigned gpus = 0;                         // 0: not said
  uint64_t memory_bytes = 0;                 // 0: not said
  std::string transport;                     // auto, tcp, shm or rdma; empty: not said
  bool no_progress = false;
};

// `resources`: also --gpus and --memory.
void add_session_options(CLI::App& app, SessionOptions& options, bool resources);
// Is this word an option that takes the word behind it?
bool takes_value(std::string_view word);
// Sets GPUWIRE_SERVER and the other variables, each from the first that says something: the option, the profile that an
// option names, the environment, the user's configuration, the system's. Files become absolute: a program may change
// its folder before its first call. The error is a line for the user: what is wrong with a file, or that there is no
// server.
tl::expected<void, std::string> set_environment(const SessionOptions& options);

// For --help.
inline constexpr const char* kSessionEnvironment =
    "Environment:\n"
    "  GPUWIRE_SERVER          the server, when --server is not given\n"
    "  GPUWIRE_USE             the profile of the configuration, when --use is not given\n"
    "  GPUWIRE_IDENTITY        file with certificate and key, when --identity is not given\n"
    "  GPUWIRE_CA              file with the server's CA, when --ca is not given\n"
    "  GPUWIRE_TOKEN_FILE      file with a token, when --token-file is not given\n"
    "  GPUWIRE_TRANSPORT       auto, tcp, shm or rdma, when --transport is not given\n";
inline constexpr const char* kResourceEnvironment =
    "  GPUWIRE_GPUS            how many GPUs, when --gpus is not given\n"
    "  GPUWIRE_MEMORY          how much memory on each, when --memory is not given\n"
    "  GPUWIRE_PROGRESS        off: as --no-progress\n";
inline constexpr const char* kConfigurationFiles =
    "\n"
    "Files:\n"
    "  ~/.config/gpuwire/config.toml   settings for what neither an option nor the environment says\n"
    "  /etc/gpuwire/client.toml        the same for every user of the machine; your own file comes first\n";

}  // namespace gpuwire::launcher
