// One table of a TOML file while it is read: values by key, and every mistake with its line.
#pragma once

#include <filesystem>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "protocol/units/toml.hpp"
#include "protocol/wire/terminal_text.hpp"
#include "server/config/configuration.hpp"

namespace gpuwire::server {

class Mistakes {
 public:
  explicit Mistakes(std::filesystem::path file) : file_(std::move(file)) {}
  // A mistake is one line, though it may quote the file: control characters become blanks.
  void add(const toml::source_region& where, std::string_view what) { add(where.begin.line, text(where, what)); }
  // Adds an error of the command line.
  void add(std::string what) { add(0, std::move(what)); }
  std::string text(const toml::source_region& where, std::string_view what) const;
  // In the order of the file.
  ConfigurationErrors take();

 private:
  void add(uint32_t line, std::string what) {
    wire::blank_unshown(what);
    lines_.emplace_back(line, std::move(what));
  }

  std::filesystem::path file_;
  std::vector<std::pair<uint32_t, std::string>> lines_;
};

// Each read declares its key as known; finish() reports all other keys. A value of a wrong type is reported, and `out`
// stays unchanged.
class Section {
 public:
  // `name`: as the user writes it, "[server]". A null table reads nothing.
  Section(Mistakes& mistakes, const toml::table* table, std::string name)
      : mistakes_(mistakes), table_(table), name_(std::move(name)) {}

  void flag(std::string_view key, bool& out);
  void text(std::string_view key, std::string& out);
  void count(std::string_view key, unsigned& out, unsigned least, unsigned most);
  void number(std::string_view key, double& out, double above, double most, bool above_itself = false);
  void bytes(std::string_view key, uint64_t& out);
  void duration_ms(std::string_view key, uint64_t& out);
  // Reads one string, or an array of different strings.
  void texts(std::string_view key, std::vector<std::string>& out);
  void numbers(std::string_view key, std::vector<unsigned>& out, unsigned most);
  // Reads one of these words; returns its index.
  std::optional<size_t> word(std::string_view key, const std::vector<std::string_view>& words);
  const toml::table* table(std::string_view key);
  // Null: the key is missing. The key counts as known.
  const toml::node* node(std::string_view key);

  // Returns the position of the key, or, without the key, of the section.
  toml::source_region where(std::string_view key) const;
  // "sessions_max of [server]".
  std::string label(std::string_view key) const { return std::string(key) + " of " + name_; }
  Mistakes& mistakes() { return mistakes_; }
  void wrong(std::string_view key, std::string_view what) {
    mistakes_.add(where(key),
                  label(key) + " " + std::string(what) +
                      (what.starts_with("must ") && what.find(", got ") == std::string_view::npos ? got(key) : ""));
  }
  // Returns for example ", got 3"; nothing for a long value.
  static std::string got(const toml::node& value);
  const std::string& name() const { return name_; }
  void finish();

 private:
  std::string got(std::string_view key) const {
    const toml::node* value = table_ ? table_->get(key) : nullptr;
    return value ? got(*value) : std::string();
  }

  Mistakes& mistakes_;
  const toml::table* table_;
  const std::string name_;
  std::vector<std::string_view> known_;
};

}  // namespace gpuwire::server
