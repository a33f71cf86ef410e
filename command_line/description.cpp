#include "command_line/description.hpp"

#include <sstream>

#include <CLI/CLI.hpp>

#include "command_line/command.hpp"
#include "protocol/units/json.hpp"

namespace gpuwire {
namespace {

using Json = nlohmann::ordered_json;

// CLI11 keeps the words of an IsMember check only as text behind the type's name: "KEY:{gpu,memory}".
Json listed_values(const std::string& type_name) {
  Json values = Json::array();
  size_t begin = type_name.find('{'), end = type_name.find('}');
  if (begin == std::string::npos || end == std::string::npos) return values;
  std::istringstream words(type_name.substr(begin + 1, end - begin - 1));
  for (std::string word; std::getline(words, word, ',');) values.push_back(word);
  return values;
}

Json described(const CLI::Option& option) {
  Json out;
  out["names"] = Json::array();
  for (const std::string& name : option.get_snames()) out["names"].push_back("-" + name);
  for (const std::string& name : option.get_lnames()) out["names"].push_back("--" + name);
  if (option.get_positional()) out["names"].push_back(option.get_name(true));
  out["text"] = option.get_description();
  std::string type = option.get_type_name();
  if (Json values = listed_values(type); !values.empty()) out["values"] = values;
  if (option.get_items_expected_max() != 0) out["value"] = type.substr(0, type.find(':'));
  if (!option.get_default_str().empty()) out["default"] = option.get_default_str();
  return out;
}

Json described(const CLI::App& app) {
  Json out;
  out["name"] = app.get_name();
  out["description"] = app.get_description();
  out["footer"] = app.get_footer();
  for (const char* kind : {"options", "positionals", "commands"}) out[kind] = Json::array();
  for (const CLI::Option* option : app.get_options())
    if (!option->get_group().empty())
      out[option->get_positional() ? "positionals" : "options"].push_back(described(*option));
  for (const CLI::App* command : app.get_subcommands(nullptr))
    if (!command->get_group().empty()) out["commands"].push_back(described(*command));
  return out;
}

}  // namespace

std::string describe(const Command& command) { return dump_json(described(*command.app_), 2); }

}  // namespace gpuwire
