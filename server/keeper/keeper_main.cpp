// gpuwire-keeper: what a server's sessions need to outlive the broker. Started by the broker, which may be killed,
// upgraded and started again.
#include <csignal>
#include <cstdio>
#include <filesystem>

#include <CLI/CLI.hpp>
#include <sys/prctl.h>
#include <sys/stat.h>
#include <unistd.h>

#include "command_line/command_line.hpp"
#include "server/base/machine.hpp"
#include "server/keeper/keeper.hpp"

namespace {

bool started_by_broker() {
  struct stat facts {};
  return ::fstat(gpuwire::server::ipc::kDescriptor, &facts) == 0 && S_ISSOCK(facts.st_mode);
}

}  // namespace

int main(int argc, char** argv) {
  using namespace gpuwire::server;
  std::filesystem::path socket;
  CLI::App app(
      "Keeps a server's sessions while its broker is started again. Started by gpuwire serve; of no use by itself.",
      "gpuwire keeper");
  app.add_option("--socket", socket)->required();
  if (auto code = gpuwire::parse_command_line(app, argc, argv)) return *code;
  if (!started_by_broker()) {
    std::fputs("gpuwire-keeper: is started by gpuwire serve, and of no use by itself\n", stderr);
    return 1;
  }
  // What ends the broker, a terminal's Ctrl-C or a service manager's SIGTERM, may reach the whole group; how this ends
  // is said in Keeper::run().
  for (int number : {SIGPIPE, SIGINT, SIGTERM, SIGHUP, SIGUSR2}) std::signal(number, SIG_IGN);
  ::prctl(PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0);
  set_kill_order(::getpid(), kKillOrderOfBroker);  // only root may
  ::prctl(PR_SET_DUMPABLE, 0, 0, 0, 0);            // other processes of this user may not take its descriptors
  Keeper(socket, OwnedDescriptor(ipc::kDescriptor)).run();
  return 0;
}
