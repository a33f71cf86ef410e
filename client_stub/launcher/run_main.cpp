// gpuwire-run; under the names gpuwire-shell and gpuwire-env, which are links to it, those commands; and what
// start_account_watch() starts.
#include <string_view>

#include "client_stub/launcher/account_watch.hpp"
#include "client_stub/launcher/run_commands.hpp"

int main(int argc, char** argv) {
  using namespace gpuwire::launcher;
  std::string_view name = argc > 0 ? argv[0] : "";
  if (name.ends_with("gpuwire-shell")) return shell_command(argc, argv);
  if (name.ends_with("gpuwire-env")) return env_command(argc, argv);
  if (name == kAccountWatchName) return watch_accounts();
  return run_command(argc, argv);
}
