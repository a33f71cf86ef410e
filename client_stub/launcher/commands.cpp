#include "client_stub/launcher/commands.hpp"

#include <unistd.h>

#include <algorithm>
#include <filesystem>
#include <string_view>

namespace gpuwire::launcher {

namespace fs = std::filesystem;

namespace {
constexpr std::string_view kPrefix = "gpuwire-";

std::string without_dots(const fs::path& folder) {
  std::error_code error;
  fs::path found = fs::canonical(folder, error);
  return error ? folder.lexically_normal().string() : found.string();
}

}  // namespace

std::string program_folder() {
  std::error_code error;
  fs::path self = fs::read_symlink("/proc/self/exe", error);
  return error ? std::string() : self.parent_path().string();
}

std::vector<Command> installed_commands(const std::string& folder) {
  std::vector<Command> commands;
  std::error_code error;
  for (fs::directory_iterator entry(folder, error), end; !error && entry != end; entry.increment(error)) {
    std::string name = entry->path().filename().string();
    if (name.size() > kPrefix.size() && name.starts_with(kPrefix) && access(entry->path().c_str(), X_OK) == 0)
      commands.push_back({name.substr(kPrefix.size()), entry->path().string()});
  }
  std::sort(commands.begin(), commands.end(), [](const Command& a, const Command& b) { return a.name < b.name; });
  return commands;
}

bool is_internal(const std::string& command) {
  return command == "worker" || command == "login" || command == "keeper" || command.starts_with("tenant-");
}

std::vector<std::string> admin_commands() {
  return {"init", "add-tenant", "job-token", "revoke", "renew", "list", "sessions", "end", "reload"};
}

std::string summary_of(const std::string& command) {
  if (command == "run") return "run a program whose CUDA calls go to a server";
  if (command == "shell") return "your shell, in which every program's CUDA calls go to a server";
  if (command == "env") return "what to export so that they do in the shell that you are in";
  if (command == "info") return "show a server's devices, versions, round-trip time and bandwidth";
  if (command == "queue") return "your programs at a server: who runs, who waits, and for what";
  if (command == "usage") return "what tenants have used by day, from the audit log";
  if (command == "serve") return "offer this machine's GPUs to clients";
  if (command == "admin") return "say who may use this server: certificates, tokens, revocation";
  if (command == "top") return "what the tenants and sessions of this machine's server do, live";
  if (command == "status") return "this machine's server in short: devices, tenants, sessions, queue";
  if (command == "metrics") return "the server's figures for Prometheus (started by serve)";
  return {};
}

std::string command_folder(const std::string& front_door_folder) {
  return without_dots(fs::path(front_door_folder) / "../lib/gpuwire/commands");
}

std::string stub_folder(const std::string& command_folder) { return without_dots(fs::path(command_folder) / ".."); }

}  // namespace gpuwire::launcher
