// Checks whether files can be made in a folder, by making one. Permissions are not enough: they hardly restrict root,
// and the file system may be read-only.
#pragma once

#include <filesystem>
#include <string>

namespace gpuwire::server {

// Both return the fault, in a line; empty: none. They leave no file behind. For an existing folder.
std::string wrong_with_making(const std::filesystem::path& folder);
// For a folder that a start makes if it does not exist, with its parents.
std::string wrong_with_folder(const std::filesystem::path& folder);

}  // namespace gpuwire::server
