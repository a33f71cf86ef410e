// Whether files can be made in a folder, found out by making one: permissions do not say it, since root passes nearly
// all of them and the file system may refuse all the same.
#pragma once

#include <filesystem>
#include <string>

namespace gpuwire::server {

// Both return what is wrong, in a line; empty: nothing. They leave nothing behind.
// For a folder that exists.
std::string wrong_with_making(const std::filesystem::path& folder);
// For one that a start makes where it does not exist, with those above it.
std::string wrong_with_folder(const std::filesystem::path& folder);

}  // namespace gpuwire::server
