// Removing what a process that nobody trusts has made.
#pragma once

#include <cstddef>
#include <filesystem>

namespace gpuwire::server {

// Removes all that is in the folder, of which at most `entries_max` are looked at; the folder stays. Follows no link,
// not even one that appears meanwhile, and has a few folders open at a time however deep they lie in each other. False:
// something is left.
bool clear_folder(const std::filesystem::path& folder, size_t entries_max);

}  // namespace gpuwire::server
