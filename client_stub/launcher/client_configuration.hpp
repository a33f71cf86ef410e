// The client's configuration files: the defaults of `gpuwire run` and its kin. docs/client_configuration.md describes
// them.
#pragma once

#include <filesystem>
#include <string>

#include <tl/expected.hpp>

namespace gpuwire::launcher {

inline constexpr unsigned kGpusMax = 1024;
inline constexpr size_t kConfigurationBytesMax = 1 << 20;

// As the variables of the environment have them; empty: not said.
struct ClientSettings {
  std::string server;                        // or several, with commas between them
  std::string identity, authorities, token;  // absolute paths
  std::string gpus, memory;                  // numbers; bytes
  std::string transport;                     // auto, tcp, shm or rdma
  std::string progress;                      // on or off
  std::string gpu_type;
  std::string queue;             // on or off
  std::string connect_patience;  // a duration with its unit
};

struct ClientConfiguration {
  ClientSettings profile;  // of the profile that was asked for, or that a file names as usual
  ClientSettings general;
};

struct ConfigurationFiles {
  std::filesystem::path user, system;
};

// The user's is in $XDG_CONFIG_HOME or ~/.config; the system's in /etc, or in the folder `etc` of an installation that
// is not in /usr.
ConfigurationFiles configuration_files(const std::filesystem::path& command_folder);

// The settings of both files, the user's before the system's. `profile`: its name, empty for the default profile, if
// there is one. A missing file has no settings. The error names file and line, or the profile that no file has.
tl::expected<ClientConfiguration, std::string> read_client_configuration(const ConfigurationFiles& files,
                                                                         const std::string& profile);

}  // namespace gpuwire::launcher
