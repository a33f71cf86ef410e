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

// Below the root, as the stub libraries read it (client_stub/session/environment.hpp).
inline constexpr const char* kAttachedSettings = "etc/gpuwire/attached.env";
// Its name is the first of all, so that the folder in it is looked through first.
inline constexpr const char* kLoaderConfiguration = "etc/ld.so.conf.d/000-gpuwire.conf";
inline constexpr const char* kProfileScript = "etc/profile.d/gpuwire.sh";
inline constexpr const char* kSmiLink = "usr/local/bin/nvidia-smi";
// Where a client is copied to in a root that has none.
inline constexpr const char* kClientCopy = "opt/gpuwire";
inline constexpr const char* kWrittenByAttach = "# Written by `gpuwire attach`; `gpuwire detach` removes it.\n";

enum class AttachMode : uint8_t { loader, profile };

struct Attachment {
  std::filesystem::path root = "/";
  AttachMode mode = AttachMode::loader;
  // Also where there is a library of a real driver, which programs then no longer find.
  bool over_driver = false;
  // GPUWIRE_SERVER and its kin, for programs that have no GPUWIRE_SERVER of their own.
  Environment settings;
};

// Returns a line for each thing that was done; none: everything was so already. The error is a line for the user.
using Changes = tl::expected<std::vector<std::string>, std::string>;

// `prefix`: of the installation whose stub libraries are meant, the folder above its bin.
Changes attach(const Attachment& wanted, const std::filesystem::path& prefix);
// Reverts attach(), in either mode.
Changes detach(const std::filesystem::path& root);

}  // namespace gpuwire::launcher
