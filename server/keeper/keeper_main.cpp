// gpuwire-keeper: stores the objects that a server's sessions need to outlive the broker, which may be killed, upgraded
// and started again. Started by the broker.
#include <csignal>
#include <filesystem>

#include <sys/prctl.h>
#include <unistd.h>

#include "command_line/command_line.hpp"
#include "server/base/machine.hpp"
#include "server/ipc/part_of_server.hpp"
#include "server/keeper/keeper.hpp"

int main(int argc, char** argv) {
  using namespace gpuwire::server;
  std::filesystem::path socket;
  gpuwire::CommandLine app(part_of_server("Keeps a server's sessions while its broker is started again."),
                           "gpuwire keeper");
  app.add_option("--socket", socket).group("");
  if (auto code = gpuwire::parse_command_line(app, argc, argv)) return *code;
  if (auto code = started_by_hand("keeper")) return *code;
  // Signals that end the broker, a terminal's Ctrl-C or a service manager's SIGTERM, may reach the whole group;
  // Keeper::run() describes how this process ends.
  for (int number : {SIGPIPE, SIGINT, SIGTERM, SIGHUP, SIGUSR2}) std::signal(number, SIG_IGN);
  ::prctl(PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0);
  set_kill_order(::getpid(), kKillOrderOfBroker);  // only root may
  ::prctl(PR_SET_DUMPABLE, 0, 0, 0, 0);            // other processes of this user may not take its descriptors
  Keeper(socket, OwnedDescriptor(ipc::kDescriptor)).run();
  return 0;
}
