// `gpuwire shell`.
#include <cstdlib>
#include <string>

#include "client_stub/launcher/run.hpp"
#include "client_stub/launcher/run_commands.hpp"
#include "command_line/command_line.hpp"

namespace {

constexpr const char* kShellDescription =
    "Starts your shell (SHELL, else /bin/sh) with the CUDA calls of every program in it going to a gpuwire server. The "
    "shell replaces this process, so its exit code is its own. Each program has its own session with the server: while "
    "none runs, there is none.";

constexpr const char* kShellFooter =
    "\n"
    "Exit code: the shell's own; 126 when it cannot be executed, 2 for wrong usage.";

}  // namespace

int gpuwire::launcher::shell_command(int argc, char** argv) {
  RunOptions options;
  gpuwire::CommandLine app{kShellDescription, "gpuwire shell"};
  app.footer({kSessionEnvironment, kResourceEnvironment, kConfigurationFiles, kShellFooter});
  add_session_options(app, options.session, true);
  add_observation_options(app, options);
  if (auto code = gpuwire::parse_command_line(app, argc, argv)) return *code;
  const char* shell = std::getenv("SHELL");
  options.program = {shell && *shell ? shell : "/bin/sh"};
  return run("gpuwire shell", options);
}
