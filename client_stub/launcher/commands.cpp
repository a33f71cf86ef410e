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
  if (command == "run") return "run a program with its CUDA calls going to a server";
  if (command == "shell") return "start your shell with every program's CUDA calls going to a server";
  if (command == "env") return "print what to export to get the same in your current shell";
  if (command == "info") return "show a server's devices, versions, round-trip time and bandwidth";
  if (command == "queue") return "show your programs on a server: which run, which wait, and for what";
  if (command == "usage") return "show what tenants have used by day";
  if (command == "serve") return "offer this machine's GPUs to clients";
  if (command == "admin") return "manage who may use this server (certificates, tokens) and its sessions";
  if (command == "top") return "show what tenants and sessions are doing, live";
  if (command == "status") return "summarise this machine's server: devices, tenants, sessions, queue";
  if (command == "metrics") return "export this machine's server to Prometheus (started by serve)";
  return {};
}

std::string command_folder(const std::string& front_door_folder) {
  return without_dots(fs::path(front_door_folder) / "../lib/gpuwire/commands");
}

std::string stub_folder(const std::string& command_folder) { return without_dots(fs::path(command_folder) / ".."); }

}  // namespace gpuwire::launcher
