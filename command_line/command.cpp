#include "command_line/command.hpp"

#include <utility>

#include <CLI/CLI.hpp>

namespace gpuwire {

Option Option::type_name(const std::string& name) { return Option(option_->type_name(name)); }
Option Option::capture_default_str() { return Option(option_->capture_default_str()); }
Option Option::group(const std::string& name) { return Option(option_->group(name)); }
Option Option::required() { return Option(option_->required()); }
Option Option::needs(const std::string& other_option) { return Option(option_->needs(other_option)); }
Option Option::excludes(Option other) { return Option(option_->excludes(other.option_)); }
Option Option::take_all() { return Option(option_->take_all()); }
Option Option::take_last() { return Option(option_->take_last()); }

Option Option::one_of(const std::vector<std::string>& words) { return Option(option_->check(CLI::IsMember(words))); }
Option Option::between(int lowest, int highest) { return Option(option_->check(CLI::Range(lowest, highest))); }
Option Option::between(unsigned lowest, unsigned highest) {
  return Option(option_->check(CLI::Range(lowest, highest)));
}
Option Option::between(double lowest, double highest) { return Option(option_->check(CLI::Range(lowest, highest))); }
Option Option::existing_file() { return Option(option_->check(CLI::ExistingFile)); }

Option Option::check(const std::function<std::string(const std::string&)>& mistake) {
  return Option(option_->check(mistake));
}

Option Option::transform(const std::function<tl::expected<std::string, std::string>(const std::string&)>& convert) {
  return Option(option_->transform([convert](const std::string& text) {
    auto value = convert(text);
    if (!value) throw CLI::ValidationError(value.error());
    return *std::move(value);
  }));
}

Option Command::add_option(const std::string& names, std::string& variable, const std::string& text) {
  return Option(app_->add_option(names, variable, text));
}
Option Command::add_option(const std::string& names, std::filesystem::path& variable, const std::string& text) {
  return Option(app_->add_option(names, variable, text));
}
Option Command::add_option(const std::string& names, unsigned& variable, const std::string& text) {
  return Option(app_->add_option(names, variable, text));
}
Option Command::add_option(const std::string& names, uint64_t& variable, const std::string& text) {
  return Option(app_->add_option(names, variable, text));
}
Option Command::add_option(const std::string& names, double& variable, const std::string& text) {
  return Option(app_->add_option(names, variable, text));
}
Option Command::add_option(const std::string& names, std::optional<unsigned>& variable, const std::string& text) {
  return Option(app_->add_option(names, variable, text));
}
Option Command::add_option(const std::string& names, std::optional<uint64_t>& variable, const std::string& text) {
  return Option(app_->add_option(names, variable, text));
}
Option Command::add_option(const std::string& names, std::vector<std::string>& variable, const std::string& text) {
  return Option(app_->add_option(names, variable, text));
}
Option Command::add_option(const std::string& names, std::vector<uint64_t>& variable, const std::string& text) {
  return Option(app_->add_option(names, variable, text));
}
Option Command::add_flag(const std::string& names, bool& variable, const std::string& text) {
  return Option(app_->add_flag(names, variable, text));
}
Option Command::add_flag(const std::string& names, std::string& variable, const std::string& text) {
  return Option(app_->add_flag(names, variable, text));
}
void Command::group_of_options(const std::string& name) { app_->option_defaults()->group(name); }

Command Command::add_subcommand(const std::string& name, const std::string& text) {
  return Command(app_->add_subcommand(name, text));
}
void Command::require_subcommand(int count) { app_->require_subcommand(count); }
void Command::fallthrough() { app_->fallthrough(); }
bool Command::got_subcommand(const std::string& name) const { return app_->got_subcommand(name); }
void Command::footer(std::string_view text) { app_->footer(std::string(text)); }
void Command::footer(std::initializer_list<std::string_view> parts) {
  std::string text;
  for (std::string_view part : parts) text += part;
  app_->footer(text);
}

CommandLine::CommandLine(const std::string& description, const std::string& name)
    : CommandLine(std::make_unique<CLI::App>(description, name)) {}
CommandLine::CommandLine(std::unique_ptr<CLI::App> app) : Command(app.get()), owned_(std::move(app)) {}
CommandLine::~CommandLine() = default;

}  // namespace gpuwire
