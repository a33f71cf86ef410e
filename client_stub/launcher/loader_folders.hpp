// The folders in which the loader of a system, or of a container image, finds libraries.
#pragma once

#include <filesystem>
#include <optional>
#include <vector>

namespace gpuwire::launcher {

// Returns the folders of ld.so.conf and its includes, then the loader's built-in folders, named inside the root. Some
// may not exist.
std::vector<std::filesystem::path> loader_folders(const std::filesystem::path& root);

// Returns a libcuda.so.1 or libnvidia-ml.so.1 in one of these folders that is not gpuwire's, with the root prepended.
// `own` is the folder of gpuwire's libraries; other installations of gpuwire are recognised by their commands.
std::optional<std::filesystem::path> driver_library(const std::filesystem::path& root,
                                                    const std::filesystem::path& own);

}  // namespace gpuwire::launcher
