// The commands that prepare an environment, for a program or for a whole machine: one program under several names,
// because each copy would carry the C++ library again.
#pragma once

namespace gpuwire::launcher {

// Each is a main(): it reads its command line and returns the exit code; run and shell return only on failure.
int run_command(int argc, char** argv);
int shell_command(int argc, char** argv);
int env_command(int argc, char** argv);
int attach_command(int argc, char** argv);
int detach_command(int argc, char** argv);

}  // namespace gpuwire::launcher
