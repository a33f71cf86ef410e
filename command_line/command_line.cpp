#include "command_line/command_line.hpp"

#include <cstdio>
#include <regex>
#include <string>
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

// 0.1 for 0.100000.
std::string shortly(const std::string& number) {
  static const std::regex kZeros(R"(\.0+$|(\.\d*[1-9])0+$)");
  return std::regex_replace(number, kZeros, "$1");
}

// CLI11's words for a value that is none, in ours: what it must be, and what was said.
std::string in_our_words(const std::string& text) {
  static const std::regex kNotAmong(R"((--?[\w-]+): (.*) not in \{(.*)\})");
  static const std::regex kNotInRange(R"((--?[\w-]+): Value (.*) not in range \[?([^ ]+)(?: - | to )([^ \]]+)\]?)");
  std::smatch parts;
  if (std::regex_match(text, parts, kNotAmong)) {
    std::string words = std::regex_replace(parts[3].str(), std::regex(","), ", ");
    if (size_t last = words.rfind(", "); last != std::string::npos) words.replace(last, 2, " or ");
    return parts[1].str() + " must be " + words + ", got " + parts[2].str();
  }
  static const std::regex kNoNumber(R"(Could not convert: (--?[\w-]+) = (.*))");
  if (std::regex_match(text, parts, kNoNumber)) return parts[1].str() + " must be a number, got " + parts[2].str();
  if (std::regex_match(text, parts, kNotInRange))
    return parts[1].str() + " must be from " + shortly(parts[3]) + " to " + shortly(parts[4]) + ", got " +
           parts[2].str();
  return text;
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
