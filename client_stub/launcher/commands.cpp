#include "client_stub/launcher/commands.hpp"

#include <unistd.h>

#include <algorithm>
#include <filesystem>
#include <iterator>
#include <string_view>

namespace gpuwire::launcher {

namespace fs = std::filesystem;

namespace {
constexpr std::string_view kPrefix = "gpuwire-";

enum class Package { client, server };

struct Shipped {
  std::string_view command;
  Package package;
  std::string_view summary;    // empty: only other commands start it
  std::string_view link_to{};  // another command, whose program this one is a link to
};

constexpr Shipped kShipped[] = {
    {"run", Package::client, "run a program with its CUDA calls going to a server"},
    {"shell", Package::client, "start your shell with every program's CUDA calls going to a server", "run"},
    {"env", Package::client, "print what to export to get the same in your current shell", "run"},
    {"attach", Package::client, "let all programs of a machine or image use a server, without run", "run"},
    {"detach", Package::client, "take back what attach has done", "run"},
    {"info", Package::client, "show a server's devices, versions, round-trip time and bandwidth"},
    {"queue", Package::client, "show your programs on a server: which run, which wait, and for what", "info"},
    {"end", Package::client, "end programs of your own that run or wait at a server", "info"},
    {"suspend", Package::client, "move the GPU memory of your own idle programs to the server's own memory", "info"},
    {"resume", Package::client, "move the GPU memory of your own suspended programs back", "info"},
    {"tenant-top", Package::client, "", "info"},
    {"tenant-usage", Package::client, "", "info"},
    {"serve", Package::server, "offer this machine's GPUs to clients"},
    {"admin", Package::server, "manage who may use this server (certificates, tokens) and its sessions"},
    {"top", Package::server, "show what sessions are doing and how busy the GPUs are, live"},
    {"status", Package::server, "summarise this machine's server: devices, tenants, sessions, queue"},
    {"usage", Package::server, "show what tenants have used by day"},
    {"metrics", Package::server, "export this machine's server to Prometheus (started by serve)"},
    {"worker", Package::server, ""},
    {"login", Package::server, ""},
    {"web", Package::server, ""},
    {"keeper", Package::server, ""},
    {"suspender", Package::server, ""},
};

// The name that users try first.
constexpr std::string_view kAlias = "ps", kAliasOf = "queue";

const Shipped* find(const std::string& command) {
  const auto* found = std::find_if(std::begin(kShipped), std::end(kShipped),
                                   [&](const Shipped& one) { return one.command == command; });
  return found == std::end(kShipped) ? nullptr : found;
}

// Adds the links that a package format without links lacks.
void add_links(const std::string& folder, std::vector<Command>& commands) {
  const std::vector<Command> there = commands;
  auto path_of = [&](std::string_view name) {
    auto found = std::find_if(there.begin(), there.end(), [&](const Command& one) { return one.name == name; });
    return found == there.end() ? std::string() : found->path;
  };
  for (const Shipped& shipped : kShipped) {
    if (shipped.link_to.empty() || !path_of(shipped.command).empty()) continue;
    if (const std::string program = path_of(shipped.link_to); !program.empty())
      commands.push_back({std::string(shipped.command), program, program_path(folder, std::string(shipped.command))});
  }
}

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
      commands.push_back({name.substr(kPrefix.size()), entry->path().string(), entry->path().string()});
  }
  add_links(folder, commands);
  std::sort(commands.begin(), commands.end(), [](const Command& a, const Command& b) { return a.name < b.name; });
  return commands;
}

std::vector<std::string> client_commands() {
  std::vector<std::string> names;
  for (const Shipped& shipped : kShipped)
    if (shipped.package == Package::client) names.emplace_back(shipped.command);
  return names;
}

bool is_internal(const std::string& command) {
  const Shipped* shipped = find(command);
  return shipped && shipped->summary.empty();
}

std::vector<std::string> admin_commands() {
  return {"init",   "add-tenant", "job-token", "revoke",  "renew",  "list",  "sessions", "end",
          "reload", "web-code",   "users",     "suspend", "resume", "drain", "undrain"};
}

std::string meaning_of(const std::string& command) { return std::string(command == kAlias ? kAliasOf : command); }

void add_aliases(std::vector<std::string>& commands) {
  if (std::find(commands.begin(), commands.end(), kAliasOf) != commands.end()) commands.emplace_back(kAlias);
}

std::string summary_of(const std::string& command) {
  if (command == kAlias) return "the same as " + std::string(kAliasOf);
  const Shipped* shipped = find(command);
  return shipped ? std::string(shipped->summary) : "";
}

std::string program_path(const std::string& folder, const std::string& command) {
  return (fs::path(folder) / (std::string(kPrefix) + command)).string();
}

bool is_of_server(const std::string& command) {
  const Shipped* shipped = find(command);
  return shipped && shipped->package == Package::server;
}

std::string command_folder(const std::string& front_door_folder) {
  return without_dots(fs::path(front_door_folder) / "../lib/gpuwire/commands");
}

std::string stub_folder(const std::string& command_folder) { return without_dots(fs::path(command_folder) / ".."); }

}  // namespace gpuwire::launcher
