#include "protocol/units/unclosed_string.hpp"

namespace gpuwire::units {
namespace {

// Returns the position behind the last quote of the string that begins at `at`; npos: the string has no end.
size_t end_of_string(std::string_view toml, size_t at) {
  const char quote = toml[at];
  const bool escapes = quote == '"';
  const bool several = toml.substr(at, 3) == std::string_view(escapes ? "\"\"\"" : "'''");
  const std::string_view closing = toml.substr(at, several ? 3 : 1);
  for (size_t i = at + closing.size(); i < toml.size(); ++i) {
    if (!several && toml[i] == '\n') return std::string_view::npos;
    if (escapes && toml[i] == '\\') ++i;
    else if (toml.substr(i, closing.size()) == closing) return i + closing.size();
  }
  return std::string_view::npos;
}

}  // namespace

size_t line_of_unclosed_string(std::string_view toml) {
  size_t line = 1;
  for (size_t i = 0; i < toml.size();) {
    if (toml[i] == '#') {
      while (i < toml.size() && toml[i] != '\n') ++i;
    } else if (toml[i] == '"' || toml[i] == '\'') {
      const size_t end = end_of_string(toml, i);
      if (end == std::string_view::npos) return line;
      for (; i < end; ++i) line += toml[i] == '\n';
    } else {
      line += toml[i++] == '\n';
    }
  }
  return 0;
}

}  // namespace gpuwire::units
