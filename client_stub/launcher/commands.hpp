// The paths of this installation's programs and stub libraries. The layout is the same in a build tree and in an
// installation: bin/gpuwire, lib/gpuwire/libcuda.so.1, lib/gpuwire/commands/gpuwire-run.
#pragma once

#include <string>
#include <vector>

namespace gpuwire::launcher {

struct Command {
  // "run".
  std::string name;
  // ".../commands/gpuwire-run".
  std::string path;
  // The path of the running program, which selects the command: ".../commands/gpuwire-env".
  std::string called;
};

// The folder of the running program; empty if /proc is not available.
std::string program_folder();
// The folder of the commands, from the folder of the `gpuwire` command; without dots if it exists.
std::string command_folder(const std::string& front_door_folder);
// Every gpuwire-<command> in the folder, by name. If an installation has no links (a wheel), the programs stand for
// their links.
std::vector<Command> installed_commands(const std::string& folder);
// The commands of a client's package, by name.
std::vector<std::string> client_commands();
// Commands that only other commands start; no list shows them.
bool is_internal(const std::string& command);
// The commands behind `gpuwire admin`; a test compares them with the command itself.
std::vector<std::string> admin_commands();
// The command that a name stands for: `ps` is another name of `queue`.
std::string meaning_of(const std::string& command);
// Adds the other names of the listed commands.
void add_aliases(std::vector<std::string>& commands);
// The path of a command's program, whether it exists or not.
std::string program_path(const std::string& folder, const std::string& command);
// One line about a command of gpuwire; empty for others.
std::string summary_of(const std::string& command);
// Returns whether the command is in the package gpuwire-server.
bool is_of_server(const std::string& command);
// The folder for LD_LIBRARY_PATH, from the folder of the commands; without dots if it exists.
std::string stub_folder(const std::string& command_folder);

}  // namespace gpuwire::launcher
