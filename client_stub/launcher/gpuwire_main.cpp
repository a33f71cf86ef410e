// `gpuwire COMMAND ...` becomes `gpuwire-COMMAND ...`: each command is a program of its own, so that a client package
// carries no server.
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <string>
#include <string_view>
#include <vector>

#include "client_stub/launcher/commands.hpp"
#include "command_line/suggestion.hpp"

namespace {

constexpr int kUsageError = 2;
constexpr int kCannotExecute = 126;

// The commands by name; `top` and `usage` include the client's commands of these names.
std::vector<std::string> offered(const std::string& folder) {
  constexpr std::string_view kOfTenant = "tenant-";
  std::vector<std::string> names;
  for (const auto& installed : gpuwire::launcher::installed_commands(folder)) {
    std::string name = installed.name;
    if (name.starts_with(kOfTenant)) name.erase(0, kOfTenant.size());
    if (!gpuwire::launcher::is_internal(name) && std::find(names.begin(), names.end(), name) == names.end())
      names.push_back(name);
  }
  gpuwire::launcher::add_aliases(names);
  std::sort(names.begin(), names.end());
  return names;
}

void print_help(FILE* out, const std::string& folder) {
  std::fputs(
      "gpuwire runs CUDA programs on machines without a GPU: a program's CUDA calls go over the network to a server "
      "that has one.\n"
      "\n"
      "Usage: gpuwire COMMAND [OPTIONS]\n"
      "       gpuwire --help | --version | -v\n"
      "\n"
      "Commands:\n",
      out);
  for (const std::string& name : offered(folder))
    std::fprintf(out, "  %-10s %s\n", name.c_str(), gpuwire::launcher::summary_of(name).c_str());
  std::fputs("\n`gpuwire COMMAND --help`, or `gpuwire help COMMAND`, describes a command.\n", out);
}

std::string without_dashes(std::string word) {
  std::erase(word, '-');
  return word;
}

std::string advice(const std::string& command, const std::string& folder) {
  const std::vector<std::string> names = offered(folder);
  std::string meant = gpuwire::nearest(command, names);
  // The words of `gpuwire admin`, if it is installed: a word that differs only in dashes takes precedence.
  if (std::find(names.begin(), names.end(), "admin") != names.end()) {
    const auto behind = gpuwire::launcher::admin_commands();
    const auto same = std::find_if(behind.begin(), behind.end(), [&](const std::string& name) {
      return without_dashes(name) == without_dashes(command);
    });
    const std::string word = same != behind.end() ? *same : meant.empty() ? gpuwire::nearest(command, behind) : "";
    if (!word.empty()) meant = "admin " + word;
  }
  return meant.empty() ? "`gpuwire --help` lists the commands" : "did you mean " + meant + "?";
}

// `top` and `usage` mean this machine's server. They mean a remote server if the command line or the environment names
// one, or if the server's commands are not installed.
std::string program_of(const std::string& command, const std::vector<gpuwire::launcher::Command>& installed, int argc,
                       char** argv) {
  if (command != "top" && command != "usage") return command;
  auto is_set = [](const char* name) {
    const char* value = std::getenv(name);
    return value && *value;
  };
  // A word on the command line takes precedence over the environment.
  bool elsewhere = (is_set("GPUWIRE_SERVER") || is_set("GPUWIRE_USE")) && !is_set("GPUWIRE_CONTROL");
  for (int i = 2; i < argc; ++i) elsewhere &= !std::string_view(argv[i]).starts_with("--control");
  elsewhere |= std::none_of(installed.begin(), installed.end(), [&](const auto& one) { return one.name == command; });
  for (int i = 2; i < argc; ++i) {
    std::string_view word = argv[i];
    elsewhere |= word == "-s" || word == "--server" || word.starts_with("--server=") || word == "--use" ||
                 word.starts_with("--use=");
  }
  return elsewhere ? "tenant-" + command : command;
}

// Returns only if the program could not be started.
int start(const std::string& path, std::string called, char** argv) {
  argv[1] = called.data();
  execv(path.c_str(), argv + 1);
  // The file exists, so its loader is missing.
  if (errno == ENOENT)
    std::fprintf(stderr,
                 "gpuwire: %s needs glibc 2.31 or later, which this machine does not have (musl systems such as "
                 "Alpine do not)\n",
                 path.c_str());
  else std::fprintf(stderr, "gpuwire: cannot start %s: %s\n", path.c_str(), std::strerror(errno));
  return kCannotExecute;
}

}  // namespace

int main(int argc, char** argv) {
  std::string folder = gpuwire::launcher::command_folder(gpuwire::launcher::program_folder());
  if (argc < 2) {
    print_help(stderr, folder);
    return kUsageError;
  }
  std::string command = argv[1];
  // `gpuwire help run` is `gpuwire run --help`.
  std::string said_help = "--help";
  if (command == "help" && argc == 3 && argv[2][0] != '-') {
    command = argv[2];
    argv[1] = argv[2];
    argv[2] = said_help.data();
  }
  if (command == "--help" || command == "-h" || command == "help") {
    print_help(stdout, folder);
    return 0;
  }
  if (command == "--version" || command == "-v") {
    std::puts("gpuwire " GPUWIRE_VERSION);
    return 0;
  }
  command = gpuwire::launcher::meaning_of(command);
  const auto commands = gpuwire::launcher::installed_commands(folder);
  const std::string program = program_of(command, commands, argc, argv);
  for (const auto& installed : commands) {
    if (installed.name != program) continue;
    return start(installed.path, installed.called, argv);
  }
  // The command exists but is not listed: its program lacks the permission to execute, or the folder is unreadable.
  const std::string path = gpuwire::launcher::program_path(folder, program);
  if (access(path.c_str(), X_OK) == 0 || errno == EACCES) return start(path, path, argv);
  if (gpuwire::launcher::is_of_server(command)) {
    std::fprintf(
        stderr,
        "gpuwire: the command \"%s\" is part of the package gpuwire-server, which is not installed here: use it "
        "on the server's machine\n",
        command.c_str());
    return kUsageError;
  }
  std::fprintf(stderr, "gpuwire: there is no command \"%s\" in %s; %s\n", command.c_str(), folder.c_str(),
               advice(command, folder).c_str());
  return kUsageError;
}
