// Whether something can be made in a folder, found out by making something: root is refused by few permissions, and by
// file systems nevertheless.
#pragma once

#include <filesystem>
#include <string>

namespace gpuwire::server {

// What is wrong, a line; empty: nothing. Nothing stays there.
// A folder that is there.
std::string wrong_with_making(const std::filesystem::path& folder);
// One that is made, with those above it, when the server starts.
std::string wrong_with_folder(const std::filesystem::path& folder);

}  // namespace gpuwire::server
