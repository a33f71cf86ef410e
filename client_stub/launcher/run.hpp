// `gpuwire run`: a program in whose environment the stub libraries come first.
#pragma once

#include <string>
#include <vector>

#include "client_stub/launcher/login_options.hpp"

namespace gpuwire::launcher {

struct RunOptions {
  std::string server;               // as docs/cli.md says; empty: GPUWIRE_SERVER of the environment
  LoginOptions login;
  std::string trace;                // file, empty: none
  std::string stats;                // "", "summary" or "calls"
  std::vector<std::string> program; // and its arguments
};

// Exit codes of `gpuwire run` itself, as shells have them.
inline constexpr int kRunUsageError = 2;
inline constexpr int kRunCannotExecute = 126;
inline constexpr int kRunNotFound = 127;

// Becomes the program; returns only when that fails, with the exit code, after one line on stderr.
int run(const RunOptions& options);

}  // namespace gpuwire::launcher
