// `gpuwire run` and related commands: a program with the stub libraries first in its environment.
#pragma once

#include <string>
#include <vector>

#include <tl/expected.hpp>

#include "client_stub/launcher/session_options.hpp"

namespace gpuwire::launcher {

struct RunOptions {
  SessionOptions session;
  // File, empty: none.
  std::string trace;
  // Likewise.
  std::string profile;
  // "", "summary" or "calls".
  std::string stats;
  // And its arguments.
  std::vector<std::string> program;
  // One server of several, for all processes of the program.
  bool choose = false;
};

// Exit codes of `gpuwire run` itself, as in shells.
inline constexpr int kRunUsageError = 2;
inline constexpr int kRunCannotExecute = 126;
inline constexpr int kRunNotFound = 127;

// --trace, --profile and --stats.
void add_observation_options(CommandLine& app, RunOptions& options);

// An error of the user, or of the installation, with its exit code.
struct RunError {
  int code;
  std::string text;
};

// Changes this process's environment to that of the program.
tl::expected<void, RunError> prepare_environment(const RunOptions& options);

// Prepares the environment and becomes the program. Returns only on failure, with the exit code, after one line on
// stderr that begins with `command`.
int run(const char* command, const RunOptions& options);

}  // namespace gpuwire::launcher
