// Where this installation's programs and stub libraries are. The layout is the same in a build tree and in an installed
// one: bin/gpuwire, lib/gpuwire/libcuda.so.1, lib/gpuwire/commands/gpuwire-run.
#pragma once

#include <string>
#include <vector>

namespace gpuwire::launcher {

struct Command {
  std::string name;  // "run"
  std::string path;  // ".../commands/gpuwire-run"
};

// Folder of the running program; empty if /proc cannot tell.
std::string program_folder();
// The folder of the commands, from that of the `gpuwire` command, without dots when it exists.
std::string command_folder(const std::string& front_door_folder);
// Every gpuwire-<command> in the folder, by name.
std::vector<Command> installed_commands(const std::string& folder);
// Commands that are only started by others; no list shows them.
bool is_internal(const std::string& command);
// What stands behind `gpuwire admin`; a test compares it with the command itself.
std::vector<std::string> admin_commands();
// One line about a command that ships with gpuwire; empty for others.
std::string summary_of(const std::string& command);
// One of the package gpuwire-server.
bool is_of_server(const std::string& command);
// The folder that goes into LD_LIBRARY_PATH, from that of the commands, without dots when it exists.
std::string stub_folder(const std::string& command_folder);

}  // namespace gpuwire::launcher
