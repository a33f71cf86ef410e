// Removes the files of a process that is not trusted.
#pragma once

#include <cstddef>
#include <filesystem>

namespace gpuwire::server {

// Removes all content of the folder, of which at most `entries_max` entries are visited; the folder stays. Follows no
// link, not even one that appears meanwhile, and has a few folders open at a time however deep they lie in each other.
// False: something is left.
bool clear_folder(const std::filesystem::path& folder, size_t entries_max);

}  // namespace gpuwire::server
