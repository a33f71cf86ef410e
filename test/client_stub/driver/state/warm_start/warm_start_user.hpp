// A user with a folder of their own for programs' stored profiles.
#pragma once

#include <algorithm>
#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <memory>
#include <string>
#include <string_view>
#include <vector>

#include "client_stub/driver/state/warm_start/warm_start.hpp"
#include "test/support/temporary_directory.hpp"

namespace gpuwire::test {

// While the object exists, GPUWIRE_CACHE_KEY_FILE, and with it warm_start_folder(), is the user's. A test covers one
// section: the functions ignore files and lines of other sections.
struct WarmStartUser {
  TemporaryDirectory home;
  std::filesystem::path key = std::filesystem::path(home.path()) / "gpuwire" / "cache_key", folder;
  std::string word;  // the first word of the section's lines

  explicit WarmStartUser(const std::string& section) : folder(key.string() + ".warm_start"), word(section + " ") {
    setenv("GPUWIRE_CACHE_KEY_FILE", key.c_str(), 1);
  }
  WarmStartUser(const WarmStartUser&) = delete;
  WarmStartUser& operator=(const WarmStartUser&) = delete;
  ~WarmStartUser() { unsetenv("GPUWIRE_CACHE_KEY_FILE"); }

  std::shared_ptr<client::WarmStart> store(const client::SubjectDigest& subject) const {
    return std::make_shared<client::WarmStart>(folder.string(), subject);
  }

  // Returns the names of all files in the folder.
  std::vector<std::string> files() const {
    std::vector<std::string> out;
    std::error_code none;
    for (const auto& file : std::filesystem::directory_iterator(folder, none)) out.push_back(file.path().filename());
    return out;
  }
  // Returns the only file that has lines of the section, or an empty path.
  std::filesystem::path file() const {
    for (const std::string& name : files()) {
      if (!text_of(folder / name).empty()) return folder / name;
    }
    return {};
  }
  // Returns the lines of the section, without its word.
  std::string text() const { return text_of(file()); }
  size_t lines() const {
    const std::string all = text();
    return size_t(std::count(all.begin(), all.end(), '\n'));
  }
  // Writes lines of the section, the last perhaps without its end.
  void write(const std::filesystem::path& file, std::string_view text, std::ios::openmode mode = std::ios::app) const {
    std::ofstream out(file, mode);
    while (!text.empty()) {
      const size_t end = std::min(text.find('\n'), text.size() - 1) + 1;
      out << word << text.substr(0, end);
      text.remove_prefix(end);
    }
  }

 private:
  std::string text_of(const std::filesystem::path& file) const {
    std::ifstream in(file);
    std::string out;
    for (std::string line; std::getline(in, line);) {
      if (line.starts_with(word)) out += line.substr(word.size()) + '\n';
    }
    return out;
  }
};

}  // namespace gpuwire::test
