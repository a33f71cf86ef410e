// gpuwire-run; under the names gpuwire-shell and gpuwire-env, which are links to it, those commands.
#include <string_view>

#include "client_stub/launcher/run_commands.hpp"

int main(int argc, char** argv) {
  using namespace gpuwire::launcher;
  std::string_view name = argc > 0 ? argv[0] : "";
  if (name.ends_with("gpuwire-shell")) return shell_command(argc, argv);
  if (name.ends_with("gpuwire-env")) return env_command(argc, argv);
  return run_command(argc, argv);
}
