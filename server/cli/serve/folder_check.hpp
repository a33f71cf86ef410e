// Whether files can be made in a folder, found out by making one: permissions do not say it, since root passes nearly
// all of them and the file system may refuse all the same.
#pragma once

#include <filesystem>
#include <string>

namespace gpuwire::server {

// Both return the fault, in a line; empty: none. They leave no file behind. For an existing folder.
std::string wrong_with_making(const std::filesystem::path& folder);
// For a folder that a start makes if it does not exist, with those above it.
std::string wrong_with_folder(const std::filesystem::path& folder);

}  // namespace gpuwire::server
