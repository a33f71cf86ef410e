// The options and the subcommands of a command, as its program declares them. CLI11 stands behind these classes, and
// only files of this folder read its headers: a file that reads them takes 12 to 25 s to compile.
#pragma once

#include <cstdint>
#include <filesystem>
#include <functional>
#include <initializer_list>
#include <memory>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include <tl/expected.hpp>

namespace CLI {
class App;
class Option;
}  // namespace CLI

namespace gpuwire {

class CommandLine;

// A handle of one option; the option lives as long as its command line.
class Option {
 public:
  explicit Option(CLI::Option* option) : option_(option) {}

  // The name of the value in the help, such as FILE.
  Option type_name(const std::string& name);
  // The help names the variable's present value as the default.
  Option capture_default_str();
  // An option of the group "" is hidden from the help.
  Option group(const std::string& name);

  Option required();
  Option needs(const std::string& other_option);
  Option excludes(Option other);
  // An option that is given several times has all of its values, or the last one.
  Option take_all();
  Option take_last();

  Option one_of(const std::vector<std::string>& words);
  // The value is a number between these two, both included.
  Option between(int lowest, int highest);
  Option between(unsigned lowest, unsigned highest);
  Option between(double lowest, double highest);
  Option existing_file();
  // `mistake` returns why a text cannot be the value; empty: the text can.
  Option check(const std::function<std::string(const std::string&)>& mistake);
  // The value is what `convert` returns; its error is told as the user's mistake.
  Option transform(const std::function<tl::expected<std::string, std::string>(const std::string&)>& convert);

 private:
  CLI::Option* option_;
};

// A handle of a command or of a subcommand. Variables of options outlive the command line.
class Command {
 public:
  // `names`: "-s,--server"; "NAME" for a positional argument.
  Option add_option(const std::string& names, std::string& variable, const std::string& text = {});
  Option add_option(const std::string& names, std::filesystem::path& variable, const std::string& text = {});
  Option add_option(const std::string& names, unsigned& variable, const std::string& text = {});
  Option add_option(const std::string& names, uint64_t& variable, const std::string& text = {});
  Option add_option(const std::string& names, double& variable, const std::string& text = {});
  Option add_option(const std::string& names, std::optional<unsigned>& variable, const std::string& text = {});
  Option add_option(const std::string& names, std::optional<uint64_t>& variable, const std::string& text = {});
  Option add_option(const std::string& names, std::vector<std::string>& variable, const std::string& text = {});
  Option add_option(const std::string& names, std::vector<uint64_t>& variable, const std::string& text = {});
  Option add_flag(const std::string& names, bool& variable, const std::string& text = {});
  // `names`: "--stats{summary}" for a flag that stands for the value in braces, unless it is given one as
  // --stats=VALUE.
  Option add_flag(const std::string& names, std::string& variable, const std::string& text = {});
  // The group of each option that is added from here on.
  void group_of_options(const std::string& name);

  Command add_subcommand(const std::string& name, const std::string& text);
  void require_subcommand(int count);
  // Options of this command may also stand behind a subcommand.
  void fallthrough();
  bool got_subcommand(const std::string& name) const;

  // The text below the options in the help. A subcommand that has none takes what its parent has when it is added.
  void footer(std::string_view text);
  void footer(std::initializer_list<std::string_view> parts);

 protected:
  explicit Command(CLI::App* app) : app_(app) {}

 private:
  friend std::optional<int> parse_command_line(CommandLine& command, int argc, const char* const* argv);
  friend std::string describe(const Command& command);

  CLI::App* app_;
};

// The command of a program, with everything that is added to it.
class CommandLine : public Command {
 public:
  // `name`: "gpuwire COMMAND".
  CommandLine(const std::string& description, const std::string& name);
  ~CommandLine();
  CommandLine(const CommandLine&) = delete;
  CommandLine& operator=(const CommandLine&) = delete;

 private:
  explicit CommandLine(std::unique_ptr<CLI::App> app);

  std::unique_ptr<CLI::App> owned_;
};

}  // namespace gpuwire
