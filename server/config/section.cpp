#include "server/config/section.hpp"

#include <algorithm>
#include <sstream>

#include <fmt/format.h>
#include <fmt/ranges.h>

#include "protocol/units/byte_size.hpp"
#include "protocol/units/duration.hpp"
#include "server/config/nearest_word.hpp"

namespace gpuwire::server {

std::string Mistakes::text(const toml::source_region& where, std::string_view what) const {
  return fmt::format("{}:{}: {}", file_.string(), where.begin.line, what);
}

ConfigurationErrors Mistakes::take() {
  std::stable_sort(lines_.begin(), lines_.end(), [](const auto& a, const auto& b) { return a.first < b.first; });
  ConfigurationErrors all;
  for (auto& [line, text] : lines_) all.push_back(std::move(text));
  return all;
}

const toml::node* Section::node(std::string_view key) {
  known_.push_back(key);
  return table_ ? table_->get(key) : nullptr;
}

toml::source_region Section::where(std::string_view key) const {
  if (!table_) return {};
  const toml::node* value = table_->get(key);
  return value ? value->source() : table_->source();
}

// Returns the value on one line, if it is short.
std::string Section::got(const toml::node& value) {
  constexpr size_t kBytesMax = 40;
  if (value.is_table() || value.is_array()) return {};
  std::ostringstream text;
  value.visit([&](const auto& one) { text << one; });
  std::string said = text.str();
  return said.size() > kBytesMax || said.find('\n') != std::string::npos ? std::string() : ", got " + said;
}

void Section::flag(std::string_view key, bool& out) {
  const toml::node* value = node(key);
  if (!value) return;
  if (auto* is = value->as_boolean()) out = is->get();
  else wrong(key, "must be true or false");
}

void Section::text(std::string_view key, std::string& out) {
  const toml::node* value = node(key);
  if (!value) return;
  if (auto* is = value->as_string()) out = is->get();
  else wrong(key, "must be a string in quotes");
}

void Section::count(std::string_view key, unsigned& out, unsigned least, unsigned most) {
  const toml::node* value = node(key);
  if (!value) return;
  auto* is = value->as_integer();
  if (is && is->get() >= int64_t(least) && is->get() <= int64_t(most)) out = unsigned(is->get());
  else wrong(key, fmt::format("must be a whole number from {} to {}", least, most));
}

void Section::number(std::string_view key, double& out, double above, double most, bool above_itself) {
  const toml::node* value = node(key);
  if (!value) return;
  std::optional<double> is = value->is_number() ? value->value<double>() : std::nullopt;
  if (is && (*is > above || (above_itself && *is == above)) && *is <= most) out = *is;
  else wrong(key, fmt::format("must be a number {} {} and at most {}", above_itself ? "from" : "above", above, most));
}

void Section::bytes(std::string_view key, uint64_t& out) {
  const toml::node* value = node(key);
  if (!value) return;
  auto* number = value->as_integer();
  auto* text = value->as_string();
  if (!number && !text) return wrong(key, "must be a size with a unit, such as \"20GiB\"");
  auto parsed = units::parse_byte_size(number ? std::to_string(number->get()) : text->get());
  if (parsed) out = *parsed;
  else mistakes_.add(where(key), fmt::format("{}: {}", label(key), parsed.error()));
}

void Section::duration_ms(std::string_view key, uint64_t& out) {
  const toml::node* value = node(key);
  if (!value) return;
  auto* text = value->as_string();
  if (!text) return wrong(key, "must be a duration with a unit, such as \"30s\"");
  auto parsed = units::parse_duration_ms(text->get());
  if (parsed) out = *parsed;
  else mistakes_.add(where(key), fmt::format("{}: {}", label(key), parsed.error()));
}

void Section::texts(std::string_view key, std::vector<std::string>& out) {
  const toml::node* value = node(key);
  if (!value) return;
  std::vector<std::string> read;
  if (auto* one = value->as_string()) {
    read.push_back(one->get());
  } else if (auto* list = value->as_array()) {
    for (const toml::node& item : *list) {
      auto* text = item.as_string();
      if (!text) {
        mistakes_.add(item.source(), label(key) + " must hold strings in quotes" + got(item));
      } else if (std::find(read.begin(), read.end(), text->get()) != read.end()) {
        mistakes_.add(item.source(), fmt::format("{} names \"{}\" twice", label(key), text->get()));
      } else {
        read.push_back(text->get());
      }
    }
  } else {
    return wrong(key, "must be a string, or a list of strings");
  }
  out = std::move(read);
}

void Section::numbers(std::string_view key, std::vector<unsigned>& out, unsigned most) {
  const toml::node* value = node(key);
  if (!value) return;
  auto* list = value->as_array();
  if (!list || list->empty())
    return wrong(key, fmt::format("must be a list of numbers from 0 to {}, at least one", most));
  out.clear();
  for (const toml::node& item : *list) {
    auto* number = item.as_integer();
    if (!number || number->get() < 0 || number->get() > int64_t(most)) {
      mistakes_.add(item.source(),
                    fmt::format("{} must hold whole numbers from 0 to {}{}", label(key), most, got(item)));
    } else if (std::find(out.begin(), out.end(), unsigned(number->get())) != out.end()) {
      mistakes_.add(item.source(), fmt::format("{} names {} twice", label(key), number->get()));
    } else {
      out.push_back(unsigned(number->get()));
    }
  }
  std::sort(out.begin(), out.end());
}

std::optional<size_t> Section::word(std::string_view key, const std::vector<std::string_view>& words) {
  const toml::node* value = node(key);
  if (!value) return std::nullopt;
  auto* text = value->as_string();
  auto found = text ? std::find(words.begin(), words.end(), std::string_view(text->get())) : words.end();
  if (found != words.end()) return size_t(found - words.begin());
  wrong(key, fmt::format("must be one of \"{}\"", fmt::join(words, "\", \"")));
  return std::nullopt;
}

const toml::table* Section::table(std::string_view key) {
  const toml::node* value = node(key);
  if (!value) return nullptr;
  if (!value->is_table()) wrong(key, "must be a table");
  return value->as_table();
}

void Section::finish() {
  if (!table_) return;
  for (const auto& [key, value] : *table_) {
    if (std::find(known_.begin(), known_.end(), key.str()) != known_.end()) continue;
    std::string_view near = nearest_word(key.str(), known_);
    mistakes_.add(key.source(), fmt::format("{} has no \"{}\"{}", name_, key.str(),
                                            near.empty() ? "" : fmt::format("; did you mean \"{}\"?", near)));
  }
}

}  // namespace gpuwire::server
