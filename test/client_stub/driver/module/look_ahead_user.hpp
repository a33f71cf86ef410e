// A user with a folder of their own for what programs write down about images.
#pragma once

#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <string>
#include <vector>

#include "test/support/temporary_directory.hpp"

namespace gpuwire::test {

// GPUWIRE_CACHE_KEY_FILE, and with it look_ahead_folder(), is theirs for as long as this lives.
struct LookAheadUser {
  TemporaryDirectory home;
  std::filesystem::path key = std::filesystem::path(home.path()) / "gpuwire" / "cache_key", folder;

  // `what`: that of look_ahead_folder().
  explicit LookAheadUser(const std::string& what) : folder(key.string() + "." + what) {
    setenv("GPUWIRE_CACHE_KEY_FILE", key.c_str(), 1);
  }
  LookAheadUser(const LookAheadUser&) = delete;
  LookAheadUser& operator=(const LookAheadUser&) = delete;
  ~LookAheadUser() { unsetenv("GPUWIRE_CACHE_KEY_FILE"); }

  std::vector<std::string> files() const {
    std::vector<std::string> out;
    std::error_code none;
    for (const auto& file : std::filesystem::directory_iterator(folder, none)) out.push_back(file.path().filename());
    return out;
  }
  // That of the only image.
  std::filesystem::path file() const { return folder / files().at(0); }
  std::string text() const {
    std::ifstream in(file());
    return {std::istreambuf_iterator<char>(in), {}};
  }
};

}  // namespace gpuwire::test
