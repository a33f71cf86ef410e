// `gpuwire attach`: every program of a machine, or of a container image's folder, finds the stub libraries without
// `gpuwire run`. Each file that attach writes begins with one line that says so, and attach and detach change
// only such files.
#pragma once

#include <filesystem>
#include <string>
#include <vector>

#include <tl/expected.hpp>

#include "client_stub/launcher/environment_text.hpp"

namespace gpuwire::launcher {

// The path below the root, which the stub libraries read (client_stub/session/environment.hpp).
inline constexpr const char* kAttachedSettings = "etc/gpuwire/attached.env";
// The name sorts first, so that the loader searches its folder first.
inline constexpr const char* kLoaderConfiguration = "etc/ld.so.conf.d/000-gpuwire.conf";
inline constexpr const char* kProfileScript = "etc/profile.d/gpuwire.sh";
inline constexpr const char* kSmiLink = "usr/local/bin/nvidia-smi";
// The folder of a client's copy in a root that has no client.
inline constexpr const char* kClientCopy = "opt/gpuwire";
inline constexpr const char* kWrittenByAttach = "# Written by `gpuwire attach`; `gpuwire detach` removes it.\n";

enum class AttachMode : uint8_t { loader, profile };

struct Attachment {
  std::filesystem::path root = "/";
  AttachMode mode = AttachMode::loader;
  // Attaches even if the root has the library of a real driver, which programs then no longer find.
  bool over_driver = false;
  // GPUWIRE_SERVER and related variables, for programs without their own GPUWIRE_SERVER.
  Environment settings;
};

// Returns a line for each change, or none if nothing changed. The error is a line for the user.
using Changes = tl::expected<std::vector<std::string>, std::string>;

// `prefix` is the installation of the stub libraries: the folder above its bin.
Changes attach(const Attachment& wanted, const std::filesystem::path& prefix);
// Reverts attach() in both modes.
Changes detach(const std::filesystem::path& root);

}  // namespace gpuwire::launcher
