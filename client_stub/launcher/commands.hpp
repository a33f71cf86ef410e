// Where this installation's programs and stub libraries are. The layout is the same in a build tree and in an installed one:
// bin/gpuwire*, lib/gpuwire/libcuda.so.1.
#pragma once

#include <string>
#include <vector>

namespace gpuwire::launcher {

struct Command {
  std::string name;   // "run"
  std::string path;   // ".../bin/gpuwire-run"
};

// Folder of the running program; empty if /proc cannot tell.
std::string program_folder();
// Every gpuwire-<command> beside the running program, by name.
std::vector<Command> installed_commands(const std::string& folder);
// One line about a command that ships with gpuwire; empty for others.
std::string summary_of(const std::string& command);
// The folder that goes into LD_LIBRARY_PATH: ../lib/gpuwire from `folder`, without dots when it exists.
std::string stub_folder(const std::string& folder);

}  // namespace gpuwire::launcher
