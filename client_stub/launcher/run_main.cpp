// gpuwire-run, the commands of its links (gpuwire-shell, gpuwire-env, gpuwire-attach, gpuwire-detach), and the process
// that start_account_watch() starts.
#include <string>
#include <string_view>

#include "client_stub/launcher/account_watch.hpp"
#include "client_stub/launcher/commands.hpp"
#include "client_stub/launcher/run_commands.hpp"
#include "client_stub/session/borrowed_session.hpp"

std::string gpuwire::client::session_library() {
  return launcher::stub_folder(launcher::program_folder()) + "/libcuda.so.1";
}

int main(int argc, char** argv) {
  using namespace gpuwire::launcher;
  std::string_view name = argc > 0 ? argv[0] : "";
  if (name.ends_with("gpuwire-shell")) return shell_command(argc, argv);
  if (name.ends_with("gpuwire-env")) return env_command(argc, argv);
  if (name.ends_with("gpuwire-attach")) return attach_command(argc, argv);
  if (name.ends_with("gpuwire-detach")) return detach_command(argc, argv);
  if (name == kAccountWatchName) return watch_accounts();
  return run_command(argc, argv);
}
