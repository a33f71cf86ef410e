#include "server/cli/admin_users.hpp"

#include <algorithm>
#include <cstdio>
#include <fstream>
#include <iostream>
#include <iterator>
#include <map>
#include <sstream>

#include <fmt/format.h>

namespace gpuwire::server {
namespace {

namespace fs = std::filesystem;
using Failure = tl::unexpected<std::string>;

constexpr int kUsersFailed = 1;
constexpr const char* kConfigurationFile = "/etc/gpuwire/server.toml";
constexpr const char* kUsualPort = "9750";
constexpr const char* kServerLinesFile = "server.toml";

int users_failed(const std::string& reason) {
  std::istringstream lines(reason);
  for (std::string line; std::getline(lines, line);) std::fprintf(stderr, "gpuwire admin: %s\n", line.c_str());
  return kUsersFailed;
}

std::string trimmed(const std::string& line) {
  const char* blanks = " \t\r\n";
  const size_t first = line.find_first_not_of(blanks);
  return first == line.npos ? std::string() : line.substr(first, line.find_last_not_of(blanks) - first + 1);
}

tl::expected<std::string, std::string> text_of_list(const fs::path& list) {
  std::ifstream file;
  if (list != "-") file.open(list);
  std::istream& in = list == "-" ? std::cin : file;
  if (!in) return Failure(fmt::format("{}: cannot be read", list.string()));
  std::string text;
  for (char c; text.size() <= kUserListBytesMax && in.get(c);) text += c;
  if (text.size() > kUserListBytesMax)
    return Failure(fmt::format("{}: is longer than {} bytes", list.string(), kUserListBytesMax));
  return text;
}

// Returns the present content of the server's file; nothing: the file does not exist, or has a mistake that the server
// will report.
std::optional<Configuration> configuration_of(const NewUsers& wanted) {
  fs::path file = wanted.configuration.empty() ? fs::path(kConfigurationFile) : wanted.configuration;
  if (!fs::exists(file)) return std::nullopt;
  auto configuration = read_configuration(file);
  return configuration ? std::optional(std::move(*configuration)) : std::nullopt;
}

// Returns the first name of the server's certificate, and the port of the first address that is not a Unix socket.
std::string server_address(const NewUsers& wanted, const ServerFacts& facts,
                           const std::optional<Configuration>& configuration) {
  if (!wanted.server.empty()) return wanted.server;
  std::string port = kUsualPort;
  if (configuration)
    for (const std::string& address : configuration->listen) {
      if (address.starts_with("unix:")) continue;
      port = address.substr(address.rfind(':') + 1);
      break;
    }
  const std::string host = facts.hosts.empty() ? "localhost" : facts.hosts.front();
  return host.find(':') == host.npos ? host + ":" + port : fmt::format("[{}]:{}", host, port);
}

std::string toml_key(const std::string& name) {
  return name.find('.') == name.npos ? name : fmt::format("\"{}\"", name);
}

// The function checks the limits by reading the resulting text as the server's file.
tl::expected<UserConfiguration, std::string> bounds_of(const NewUsers& wanted) {
  UserConfiguration bounds;
  bounds.sessions_max = wanted.sessions_max;
  if (wanted.budget.empty()) return bounds;
  auto budget = parse_budget(wanted.budget);
  if (!budget) return Failure(fmt::format("--budget {}", budget.error()));
  bounds.budget.ms = *budget;
  return bounds;
}

// Returns the lines that the server's configuration lacks; empty: none.
std::string server_lines(const NewUsers& wanted, const UserConfiguration& bounds,
                         const std::optional<Configuration>& configuration, const std::string& example) {
  const TenantConfiguration* tenant = nullptr;
  if (configuration)
    for (const TenantConfiguration& one : configuration->tenants)
      if (one.name == wanted.tenant) tenant = &one;
  const bool bounded = bounds != UserConfiguration{};
  if (tenant && (!bounded || tenant->each_user == bounds)) return {};
  const std::string key = toml_key(wanted.tenant);
  std::string text = tenant ? std::string() : fmt::format("[tenants.{}]\nclass = \"batch\"\n\n", key);
  if (bounded) {
    text += fmt::format("[tenants.{}.each_user]\n", key);
    if (bounds.sessions_max) text += fmt::format("sessions_max = {}\n", bounds.sessions_max);
    if (bounds.budget.ms) text += fmt::format("budget = \"{}\"\n", wanted.budget);
    text += "\n";
  }
  return text + fmt::format(
                    "# A user who may have more or less than the others gets a section like this one:\n"
                    "# [tenants.{}.users.{}]\n# budget = \"20h/month\"\n",
                    key, toml_key(example));
}

// Makes the folder of one user: the content of ~/.config/gpuwire on the user's machine.
tl::expected<NewCredential, std::string> make_bundle(const fs::path& directory, const NewUsers& wanted,
                                                     const std::string& user, const std::string& server, WallTime now) {
  const fs::path folder = wanted.out / user;
  std::error_code error;
  fs::create_directories(folder, error);
  if (!error) fs::permissions(folder, fs::perms::owner_all, error);
  if (error) return Failure(fmt::format("{}: {}", folder.string(), error.message()));
  const fs::path file = folder / (wanted.token ? "token" : "identity.pem");
  if (fs::exists(file))
    return Failure(fmt::format("{} is there, and the register has nothing of {} that counts: move it away",
                               file.string(), label_of(wanted.tenant, user)));
  // Written before the credential: an interrupted run has either completed a user, or makes the user again.
  if (auto written = replace_private_file(folder / "config.toml", fmt::format("server = \"{}\"\n", server)); !written)
    return Failure(written.error());
  auto made = (wanted.token ? add_token : add_certificate)(directory, wanted.tenant, wanted.days, file, now, user);
  if (!made || !wanted.token) return made;
  // The owner of a token also needs the authority's certificate.
  if (auto written = replace_private_file(folder / "ca.pem", made->authority); !written)
    return Failure(written.error());
  return made;
}

// Returns the tenant's valid credentials, by user.
std::map<std::string, Credential> users_of(const Register& credentials, const std::string& tenant, WallTime now) {
  std::map<std::string, Credential> users;
  for (const Credential& one : credentials.credentials())
    if (one.tenant == tenant && !one.user.empty() && why_invalid(one, now).empty())
      users.insert_or_assign(one.user, one);
  return users;
}

}  // namespace

tl::expected<std::vector<std::string>, std::string> read_user_list(const std::string& text) {
  std::vector<std::string> names;
  std::map<std::string, size_t> lines;  // in which each stands
  std::string mistakes;
  std::istringstream in(text);
  size_t number = 0;
  for (std::string line; std::getline(in, line);) {
    ++number;
    const std::string name = trimmed(line.substr(0, line.find('#')));
    if (name.empty()) continue;
    if (!is_user_name(name)) {
      mistakes += fmt::format(
          "line {}: \"{:.64}\" is not a user name: it must be 1 to 64 of A-Z, a-z, 0-9, '.', '_', '-', and not begin "
          "with a dot\n",
          number, name);
    } else if (auto [at, added] = lines.try_emplace(name, number); !added) {
      mistakes += fmt::format("line {}: {} stands in line {} already\n", number, name, at->second);
    } else {
      names.push_back(name);
    }
  }
  if (!mistakes.empty()) return Failure(mistakes);
  if (names.empty()) return Failure(std::string("the list has no name: it must have one in each line"));
  if (names.size() > kUsersOfListMax)
    return Failure(fmt::format("the list has {} names; {} are possible", names.size(), kUsersOfListMax));
  return names;
}

int add_users(const fs::path& directory, const NewUsers& wanted, WallTime now) {
  if (!is_tenant_name(wanted.tenant))
    return users_failed(
        fmt::format("\"{}\" is not a tenant name: it must be 1 to 64 of A-Z, a-z, 0-9, '.', '_', '-'", wanted.tenant));
  auto bounds = bounds_of(wanted);
  if (!bounds) return users_failed(bounds.error());
  auto text = text_of_list(wanted.list);
  if (!text) return users_failed(text.error());
  auto names = read_user_list(*text);
  if (!names) return users_failed(names.error() + "nothing was made");
  auto facts = server_facts(directory);
  if (!facts) return users_failed(facts.error());
  auto credentials = read_register(directory);
  if (!credentials) return users_failed(credentials.error());
  const std::optional<Configuration> configuration = configuration_of(wanted);
  const std::string server = server_address(wanted, *facts, configuration);
  const std::map<std::string, Credential> have = users_of(*credentials, wanted.tenant, now);
  size_t made = 0, kept = 0;
  for (const std::string& user : *names) {
    if (auto one = have.find(user); one != have.end()) {
      std::printf("%s has one that is valid until %s\n", user.c_str(), to_words(one->second.expires).c_str());
      ++kept;
      continue;
    }
    auto bundle = make_bundle(directory, wanted, user, server, now);
    if (!bundle)
      return users_failed(fmt::format("{}\n{} of {} users were made; the same command makes the rest", bundle.error(),
                                      made, names->size() - kept));
    std::printf("made %s, valid until %s\n", (wanted.out / user).c_str(), to_words(bundle->credential.expires).c_str());
    std::fflush(stdout);
    ++made;
  }
  std::printf("%zu made, %zu had one already\n", made, kept);
  if (made)
    std::printf(
        "\nEach user puts the files of one folder into ~/.config/gpuwire (chmod 600), and then runs\n\n"
        "    gpuwire run -- PROGRAM\n");
  const std::string lines = server_lines(wanted, *bounds, configuration, names->front());
  if (lines.empty()) return 0;
  const fs::path file = wanted.out / kServerLinesFile;
  std::error_code error;
  fs::create_directories(wanted.out, error);
  if (auto written = replace_private_file(file, lines); !written) return users_failed(written.error());
  std::printf(
      "\nThe server's configuration lacks these lines, which are in %s:\n\n%s\nThen make the server read it "
      "again: gpuwire admin reload.\n",
      file.c_str(), lines.c_str());
  return 0;
}

}  // namespace gpuwire::server
