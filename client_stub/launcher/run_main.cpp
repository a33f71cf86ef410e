#include <CLI/CLI.hpp>

#include <cstring>
#include <string>
#include <string_view>

#include "client_stub/launcher/run.hpp"

namespace {

constexpr const char* kDescription =
    "gpuwire run [OPTIONS] -- PROGRAM [ARGS...]\n\n"
    "Runs PROGRAM with its CUDA calls going to a gpuwire server. The program is not changed: gpuwire's libcuda.so.1 is put in front of the "
    "system's by LD_LIBRARY_PATH. PROGRAM takes the place of this one, so its exit code and its signals are its own.";

constexpr const char* kEnvironment =
    "Environment:\n"
    "  GPUWIRE_SERVER          the server, when --server is not given\n";

constexpr const char* kFooter =
    "  GPUWIRE_GPUS            how many GPUs, when --gpus is not given\n"
    "  GPUWIRE_MEMORY          how much memory on each, when --memory is not given\n"
    "  GPUWIRE_TRACE           set from --trace for the program\n"
    "  GPUWIRE_STATS           set from --stats for the program\n"
    "  GPUWIRE_CACHE_KEY_FILE  under which key the server keeps the program's GPU code; none: it does not\n"
    "  CUDA_VISIBLE_DEVICES    as ever; numbers and UUIDs are those of the server's devices\n"
    "\n"
    "Exit code: the program's own; 127 when PROGRAM is not found, 126 when it cannot be executed, 2 for wrong use of gpuwire run.\n"
    "\n"
    "Example: gpuwire run --server gpu7:9750 -- ./vector_add 1048576";

// Index of "--", or of the first word that is neither an option nor the value of one.
int options_end(int argc, char** argv) {
  int at = 1;
  while (at < argc && argv[at][0] == '-' && std::strcmp(argv[at], "--") != 0) {
    std::string_view option = argv[at++];
    if ((option == "-s" || option == "--server" || option == "--trace" || gpuwire::launcher::takes_value(option)) && at < argc) ++at;
  }
  return at;
}

}  // namespace

int main(int argc, char** argv) {
  gpuwire::launcher::RunOptions options;
  CLI::App app{kDescription, "gpuwire run"};
  app.footer(std::string(kEnvironment) + gpuwire::launcher::kLoginEnvironment + kFooter);
  app.set_version_flag("--version", "gpuwire " GPUWIRE_VERSION);
  app.add_option("-s,--server", options.server, "The server: HOST[:PORT] (port 9750; with TLS, but on this machine), tls://..., tcp://... (bare) or unix:/PATH")->type_name("SERVER");
  gpuwire::launcher::add_login_options(app, options.login, true);
  app.add_option("--trace", options.trace, "Write one line per CUDA call to FILE: time, thread, name, arguments, class, result")->type_name("FILE");
  // A flag that may be given a value as --stats=calls: what follows it as a word of its own is the program.
  app.add_flag("--stats{summary}", options.stats,
               "When the program ends, print calls by class, bytes, waits and time on stderr; --stats=calls: for each function, too")
      ->check(CLI::IsMember({"summary", "calls"}));
  // From the program's name on nothing is ours, so only what comes before it is parsed.
  int ours = options_end(argc, argv);
  try {
    app.parse(ours, argv);
  } catch (const CLI::ParseError& error) {
    int code = app.exit(error);
    return code == 0 ? 0 : gpuwire::launcher::kRunUsageError;
  }
  int program = ours < argc && std::strcmp(argv[ours], "--") == 0 ? ours + 1 : ours;
  options.program.assign(argv + program, argv + argc);
  return gpuwire::launcher::run(options);
}
