#include "command_line/command_line.hpp"

#include <cstdio>
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

std::string failure_text(const CLI::App* top, const CLI::Error& error) {
  std::string suggestion = meant(*top), command = top->get_name();
  if (const CLI::App& inner = innermost(*top); &inner != top) command += " " + inner.get_name();
  return top->get_name() + ": " + (suggestion.empty() ? error.what() : suggestion) + "\n`" + command +
         " --help` says what there is\n";
}

}  // namespace

std::optional<int> parse_command_line(CLI::App& app, int argc, const char* const* argv) {
  app.set_version_flag("--version", "gpuwire " GPUWIRE_VERSION);
  app.failure_message(failure_text);
  // Before parsing: it stands for itself, whatever else the command needs.
  if (argc == 2 && std::string_view(argv[1]) == "--describe") {
    std::puts(describe(app).c_str());
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
