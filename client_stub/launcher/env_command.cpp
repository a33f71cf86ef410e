// `gpuwire env`.
#include <cstdio>
#include <map>
#include <string>

#include "client_stub/launcher/environment_text.hpp"
#include "client_stub/launcher/run.hpp"
#include "client_stub/launcher/run_commands.hpp"
#include "command_line/command_line.hpp"

namespace {

constexpr const char* kEnvDescription =
    "Prints the commands that give your current shell the environment in which `gpuwire run` starts a program: every "
    "program's CUDA calls then go to a gpuwire server.\n"
    "Only what differs from the current environment is printed.";

constexpr const char* kEnvFooter =
    "\n"
    "Exit code: 0; 126 when gpuwire's stub library is missing; 2 for wrong usage.\n"
    "\n"
    "Examples:\n"
    "  eval \"$(gpuwire env --server gpu7)\"                 sh, bash, zsh\n"
    "  gpuwire env --server gpu7 --shell fish | source     fish\n"
    "  eval `gpuwire env --server gpu7 --shell csh`        csh, tcsh\n";

}  // namespace

int gpuwire::launcher::env_command(int argc, char** argv) {
  const std::map<std::string, ShellKind> kinds{{"sh", ShellKind::posix},
                                               {"bash", ShellKind::posix},
                                               {"zsh", ShellKind::posix},
                                               {"fish", ShellKind::fish},
                                               {"csh", ShellKind::csh}};
  RunOptions options;
  std::string shell = "sh";
  gpuwire::CommandLine app{kEnvDescription, "gpuwire env"};
  app.footer({kSessionEnvironment, kResourceEnvironment, kConfigurationFiles, kEnvFooter});
  add_session_options(app, options.session, true);
  add_observation_options(app, options);
  app.add_option("--shell", shell, "The shell to print commands for")
      .type_name("SHELL")
      .one_of({"sh", "bash", "zsh", "fish", "csh"})
      .capture_default_str();
  if (auto code = gpuwire::parse_command_line(app, argc, argv)) return *code;
  Environment before = current_environment();
  if (auto prepared = prepare_environment(options); !prepared) {
    std::fprintf(stderr, "gpuwire env: %s\n", prepared.error().text.c_str());
    return prepared.error().code;
  }
  std::fputs(commands_of(changed(before, current_environment()), kinds.at(shell)).c_str(), stdout);
  return 0;
}
