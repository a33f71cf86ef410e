// Where this installation's programs and stub libraries are. The layout is the same in a build tree and in an installed
// one: bin/gpuwire, lib/gpuwire/libcuda.so.1, lib/gpuwire/commands/gpuwire-run.
#pragma once

#include <string>
#include <vector>

namespace gpuwire::launcher {

struct Command {
  std::string name;  // "run"
  std::string path;  // ".../commands/gpuwire-run"
  // The path of the running program, which selects the command: ".../commands/gpuwire-env".
  std::string called;
};

// The folder of the running program; empty if /proc is not available.
std::string program_folder();
// The folder of the commands, from that of the `gpuwire` command, without dots when it exists.
std::string command_folder(const std::string& front_door_folder);
// Every gpuwire-<command> in the folder, by name. An installation whose package format knows no links (a wheel) lacks
// those that are links: the programs that they lead to stand for them.
std::vector<Command> installed_commands(const std::string& folder);
// The commands of a client's package, by name.
std::vector<std::string> client_commands();
// Commands that are only started by others; no list shows them.
bool is_internal(const std::string& command);
// The commands behind `gpuwire admin`; a test compares them with the command itself.
std::vector<std::string> admin_commands();
// The command that a name stands for: `ps` is another name of `queue`.
std::string meaning_of(const std::string& command);
// Adds the other names of the commands that are there.
void add_aliases(std::vector<std::string>& commands);
// The path of a command's program, whether there is one or not.
std::string program_path(const std::string& folder, const std::string& command);
// One line about a command that ships with gpuwire; empty for others.
std::string summary_of(const std::string& command);
// One of the package gpuwire-server.
bool is_of_server(const std::string& command);
// The folder that goes into LD_LIBRARY_PATH, from that of the commands, without dots when it exists.
std::string stub_folder(const std::string& command_folder);

}  // namespace gpuwire::launcher
