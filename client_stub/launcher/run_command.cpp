#include <cstdio>
#include <cstring>
#include <string>
#include <string_view>

#include "client_stub/launcher/run.hpp"
#include "client_stub/launcher/run_commands.hpp"
#include "client_stub/launcher/start_check.hpp"
#include "command_line/command_line.hpp"

namespace {

constexpr const char* kRunDescription =
    "gpuwire run [OPTIONS] -- PROGRAM [ARGS...]\n\n"
    "Runs PROGRAM with its CUDA calls going to a gpuwire server. The program is not changed: gpuwire's libcuda.so.1 "
    "is put in front of the system's in LD_LIBRARY_PATH. PROGRAM replaces this process, so its exit code and signals "
    "are its own.";

constexpr const char* kEnvironment =
    "  GPUWIRE_TRACE           set from --trace for the program\n"
    "  GPUWIRE_PROFILE_FILE    set from --profile for the program\n"
    "  GPUWIRE_STATS           set from --stats for the program: 1, calls or why\n"
    "  GPUWIRE_ACCOUNTS        set with --stats: where programs that crash leave their summary\n"
    "  GPUWIRE_CACHE_KEY_FILE  file with the key under which the server keeps GPU code; none: it keeps none\n"
    "  CUDA_VISIBLE_DEVICES    as usual; numbers and UUIDs are those of the server's devices\n";

constexpr const char* kRunFooter =
    "\n"
    "Exit code: the program's own; 127 when PROGRAM is not found, 126 when it cannot be executed, 2 for wrong usage of "
    "gpuwire run. With --check: 0 the program would start now, 3 it would wait, 1 it would not start, or no server "
    "says.\n"
    "\n"
    "Examples:\n"
    "  gpuwire run --server gpu7:9750 -- ./vector_add 1048576\n"
    "  gpuwire run --gpus 2 --memory 20GiB -- python train.py   the server in the configuration\n"
    "  gpuwire run --server gpu1,gpu2 -- ./vector_add 1048576   the one that has room\n"
    "  gpuwire run --check --memory 20GiB                       would it start now?\n"
    "  gpuwire run -- bash                                      everything that you start there; gpuwire shell is "
    "short for it\n";

// Index of "--", or of the first word that is neither an option nor the value of one.
int options_end(int argc, char** argv) {
  int at = 1;
  while (at < argc && argv[at][0] == '-' && std::strcmp(argv[at], "--") != 0) {
    std::string_view option = argv[at++];
    if ((option == "--trace" || option == "--profile" || gpuwire::launcher::takes_value(option)) && at < argc) ++at;
  }
  return at;
}

}  // namespace

int gpuwire::launcher::run_command(int argc, char** argv) {
  RunOptions options;
  gpuwire::CommandLine app{kRunDescription, "gpuwire run"};
  app.footer({kSessionEnvironment, kResourceEnvironment, kEnvironment, kConfigurationFiles, kRunFooter});
  add_session_options(app, options.session, true);
  add_observation_options(app, options);
  bool check = false, json = false;
  app.add_flag("--check", check, "Start nothing: say whether the program would start now, and, if not, when and why");
  app.add_flag("--json", json, "With --check: print one JSON object instead of text");
  options.choose = true;
  // All words from the program's name on belong to the program, so only the words before it are parsed.
  int ours = options_end(argc, argv);
  if (auto code = gpuwire::parse_command_line(app, ours, argv)) return *code;
  int program = ours < argc && std::strcmp(argv[ours], "--") == 0 ? ours + 1 : ours;
  options.program.assign(argv + program, argv + argc);
  if (json && !check) {
    std::fputs("gpuwire run: --json is for --check\n", stderr);
    return kRunUsageError;
  }
  if (check) {
    if (auto set = set_environment(options.session); !set) {
      std::fprintf(stderr, "gpuwire run: %s\n", set.error().c_str());
      return kRunUsageError;
    }
    return check_start(json);
  }
  return run("gpuwire run", options);
}
