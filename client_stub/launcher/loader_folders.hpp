// Where the loader of a system, or of a container image's folder, finds libraries.
#pragma once

#include <filesystem>
#include <optional>
#include <vector>

namespace gpuwire::launcher {

// The folders of ld.so.conf and its includes, then the loader's built-in folders, by their names inside the root. Some
// of them may not exist.
std::vector<std::filesystem::path> loader_folders(const std::filesystem::path& root);

// A libcuda.so.1 or libnvidia-ml.so.1 in one of them that is not gpuwire's, with the root in front. `own`: the folder
// of gpuwire's; other installations' are known by their commands.
std::optional<std::filesystem::path> driver_library(const std::filesystem::path& root,
                                                    const std::filesystem::path& own);

}  // namespace gpuwire::launcher
