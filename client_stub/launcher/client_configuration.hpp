// The client's configuration files: the defaults of `gpuwire run` and its kin. docs/client_configuration.md describes
// them.
#pragma once

#include <filesystem>
#include <string>

#include <tl/expected.hpp>

namespace gpuwire::launcher {

inline constexpr unsigned kGpusMax = 1024;
inline constexpr size_t kConfigurationBytesMax = 1 << 20;

// Values in the form of the environment's variables; empty: not set.
struct ClientSettings {
  // Or several, with commas between them.
  std::string server;
  // Absolute paths.
  std::string identity, authorities, token;
  // Numbers; bytes.
  std::string gpus, memory;
  // Auto, tcp, shm or rdma.
  std::string transport;
  // On or off.
  std::string progress;
  std::string gpu_type;
  // On or off.
  std::string queue;
  // A duration with its unit.
  std::string connect_patience;
};

struct ClientConfiguration {
  // The settings of the requested profile, or of the default that a file names.
  ClientSettings profile;
  ClientSettings general;
};

struct ConfigurationFiles {
  std::filesystem::path user, system;
};

// The user's file is in $XDG_CONFIG_HOME or ~/.config; the system's file is in /etc, or in the folder `etc` of an
// installation outside /usr.
ConfigurationFiles configuration_files(const std::filesystem::path& command_folder);

// Returns the settings of both files, the user's before the system's. `profile` is a name; empty for the default
// profile, if there is one. A missing file has no settings. The error names file and line, or the profile that no file
// has.
tl::expected<ClientConfiguration, std::string> read_client_configuration(const ConfigurationFiles& files,
                                                                         const std::string& profile);

}  // namespace gpuwire::launcher
