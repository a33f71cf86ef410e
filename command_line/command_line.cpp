#include "command_line/command_line.hpp"

#include <algorithm>
#include <cstdio>
#include <optional>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include <CLI/CLI.hpp>

#include "command_line/description.hpp"
#include "command_line/suggestion.hpp"

namespace gpuwire {
namespace {

// The names of what could have been meant by `word`: options for a word that begins with a dash, else subcommands.
std::vector<std::string> candidates(const CLI::App& app, const std::string& word) {
  std::vector<std::string> names;
  if (word.starts_with("-")) {
    for (const CLI::Option* option : app.get_options())
      if (!option->get_group().empty())
        for (const std::string& name : option->get_lnames()) names.push_back("--" + name);
  } else {
    for (const CLI::App* command : app.get_subcommands(nullptr)) names.push_back(command->get_name());
  }
  return names;
}

// The subcommand that was said, of the subcommand that was said, and so on.
const CLI::App& innermost(const CLI::App& top) {
  const CLI::App* app = &top;
  while (!app->get_subcommands().empty()) app = app->get_subcommands().front();
  return *app;
}

// "" when no word that was not understood is like one that would have been.
std::string meant(const CLI::App& top) {
  for (const std::string& word : top.remaining(true)) {
    if (word == "--") break;
    std::string name = word.substr(0, word.find('='));
    std::vector<std::string> known = candidates(innermost(top), name);
    for (std::string& of_all : candidates(top, name)) known.push_back(std::move(of_all));
    if (std::string found = nearest(name, known); !found.empty())
      return "\"" + word + "\" is not known; did you mean " + found + "?";
  }
  return {};
}

bool is_digit(char c) { return c >= '0' && c <= '9'; }

// 0.1 for 0.100000.
std::string shortly(std::string_view number) {
  const size_t point = number.find('.');
  if (point == std::string_view::npos) return std::string(number);
  for (char c : number.substr(point + 1))
    if (!is_digit(c)) return std::string(number);
  while (number.ends_with('0')) number.remove_suffix(1);
  if (number.ends_with('.')) number.remove_suffix(1);
  return std::string(number);
}

bool is_option(std::string_view name) {
  const auto may_stand_in_name = [](char c) {
    return c == '-' || c == '_' || is_digit(c) || (c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z');
  };
  return name.size() >= 2 && name.front() == '-' && std::all_of(name.begin(), name.end(), may_stand_in_name);
}

using Halves = std::optional<std::pair<std::string_view, std::string_view>>;

// Splits the text at the last `separator`.
Halves split(std::string_view text, std::string_view separator) {
  const size_t at = text.rfind(separator);
  if (at == std::string_view::npos) return std::nullopt;
  return std::pair(text.substr(0, at), text.substr(at + separator.size()));
}

// "[0.5 - 2]" and "0.5 to 2".
Halves bounds(std::string_view range) {
  if (range.starts_with('[')) range.remove_prefix(1);
  if (range.ends_with(']')) range.remove_suffix(1);
  const Halves halves = split(range, range.find(" to ") == std::string_view::npos ? " - " : " to ");
  if (!halves || halves->first.empty() || halves->second.empty()) return std::nullopt;
  if (halves->first.find(' ') != std::string_view::npos || halves->second.find_first_of(" ]") != std::string_view::npos)
    return std::nullopt;
  return halves;
}

// CLI11's words for a value that is none, in ours: what it must be, and what was said. Three sentences do not need
// std::regex, which takes longer to compile than the whole file.
std::string in_our_words(const std::string& text) {
  constexpr std::string_view kNotConverted = "Could not convert: ", kValue = "Value ";
  if (text.starts_with(kNotConverted)) {
    const std::string_view rest = std::string_view(text).substr(kNotConverted.size());
    const size_t equals = rest.find(" = ");
    if (equals == std::string_view::npos || !is_option(rest.substr(0, equals))) return text;
    return std::string(rest.substr(0, equals)) + " must be a number, got " + std::string(rest.substr(equals + 3));
  }
  const size_t colon = text.find(": ");
  if (colon == std::string::npos || !is_option(std::string_view(text).substr(0, colon))) return text;
  const std::string option = text.substr(0, colon);
  const std::string_view mistake = std::string_view(text).substr(colon + 2);
  if (const Halves among = split(mistake, " not in {"); among && among->second.ends_with('}')) {
    std::string words;
    for (char c : among->second.substr(0, among->second.size() - 1)) words += c == ',' ? ", " : std::string(1, c);
    if (size_t last = words.rfind(", "); last != std::string::npos) words.replace(last, 2, " or ");
    return option + " must be " + words + ", got " + std::string(among->first);
  }
  const Halves ranged = split(mistake, " not in range ");
  if (!ranged || !ranged->first.starts_with(kValue)) return text;
  const Halves lowest_highest = bounds(ranged->second);
  if (!lowest_highest) return text;
  return option + " must be from " + shortly(lowest_highest->first) + " to " + shortly(lowest_highest->second) +
         ", got " + std::string(ranged->first.substr(kValue.size()));
}

bool lacks_command(const CLI::App& app) { return app.get_require_subcommand_min() > app.get_subcommands().size(); }

// For who has said none, or one that is like none.
std::string which_command(const CLI::App& app) {
  std::string words;
  const auto commands = app.get_subcommands(nullptr);
  for (size_t i = 0; i < commands.size(); ++i)
    words += (i == 0 ? "" : i + 1 < commands.size() ? ", " : " or ") + commands[i]->get_name();
  const std::vector<std::string> said = app.remaining();
  return "the command must be " + words + (said.empty() ? "" : ", got " + said.front());
}

std::string failure_text(const CLI::App* top, const CLI::Error& error) {
  std::string suggestion = meant(*top), command = top->get_name();
  if (const CLI::App& inner = innermost(*top); &inner != top) command += " " + inner.get_name();
  std::string what = !suggestion.empty() ? suggestion
                     : error.get_exit_code() == int(CLI::ExitCodes::RequiredError) && lacks_command(innermost(*top))
                         ? which_command(innermost(*top))
                         : in_our_words(error.what());
  return top->get_name() + ": " + what + "\n`" + command + " --help` describes the usage\n";
}

}  // namespace

std::optional<int> parse_command_line(CommandLine& command, int argc, const char* const* argv) {
  CLI::App& app = *command.app_;
  app.set_version_flag(app.get_option_no_throw("-v") ? "--version" : "-v,--version", "gpuwire " GPUWIRE_VERSION);
  app.failure_message(failure_text);
  // Before parsing: it stands for itself, whatever else the command needs.
  if (argc == 2 && std::string_view(argv[1]) == "--describe") {
    std::puts(describe(command).c_str());
    return 0;
  }
  try {
    app.parse(argc, argv);
  } catch (const CLI::ParseError& error) {
    return app.exit(error) == 0 ? 0 : kUsageError;
  }
  return std::nullopt;
}

}  // namespace gpuwire
