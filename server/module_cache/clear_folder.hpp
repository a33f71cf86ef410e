// Removes the files of an untrusted process.
#pragma once

#include <cstddef>
#include <filesystem>

namespace gpuwire::server {

// Removes the content of the folder, at most `entries_max` entries; the folder stays. Follows no link, not even one
// that appears meanwhile, and has only a few folders open at a time, whatever their depth. False: entries are left.
bool clear_folder(const std::filesystem::path& folder, size_t entries_max);

}  // namespace gpuwire::server
