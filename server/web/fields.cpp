#include "server/web/fields.hpp"

#include <charconv>

#include "server/web/limits.hpp"

namespace gpuwire::server::web {
namespace {

std::string decoded(std::string_view text) {
  std::string out;
  for (size_t i = 0; i < text.size(); ++i) {
    unsigned value = 0;
    const char* digits = text.data() + i + 1;
    if (text[i] == '+') out += ' ';
    else if (text[i] == '%' && i + 2 < text.size() && std::from_chars(digits, digits + 2, value, 16).ptr == digits + 2)
      out += char(value), i += 2;
    else out += text[i];
  }
  return out;
}

// Calls `take` with each of the parts, the first kFieldsMax of them.
void split(std::string_view text, char separator, auto take) {
  for (size_t count = 0; !text.empty() && count < kFieldsMax; ++count) {
    const size_t end = text.find(separator);
    const std::string_view part = text.substr(0, end);
    const size_t equals = part.find('=');
    if (equals != std::string_view::npos) take(part.substr(0, equals), part.substr(equals + 1));
    text.remove_prefix(end == std::string_view::npos ? text.size() : end + 1);
  }
}

std::string_view trimmed(std::string_view text) {
  while (!text.empty() && text.front() == ' ') text.remove_prefix(1);
  while (!text.empty() && text.back() == ' ') text.remove_suffix(1);
  return text;
}

}  // namespace

Fields form_fields(std::string_view text) {
  Fields fields;
  split(text, '&',
        [&](std::string_view name, std::string_view value) { fields.try_emplace(decoded(name), decoded(value)); });
  return fields;
}

Fields cookie_fields(std::string_view header) {
  Fields fields;
  split(header, ';', [&](std::string_view name, std::string_view value) {
    fields.try_emplace(std::string(trimmed(name)), trimmed(value));
  });
  return fields;
}

std::string field(const Fields& fields, std::string_view name) {
  auto found = fields.find(name);
  return found == fields.end() ? std::string() : found->second;
}

std::optional<uint64_t> number_field(const Fields& fields, std::string_view name) {
  const std::string text = field(fields, name);
  uint64_t value = 0;
  auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), value);
  if (text.empty() || error != std::errc() || end != text.data() + text.size()) return std::nullopt;
  return value;
}

}  // namespace gpuwire::server::web
