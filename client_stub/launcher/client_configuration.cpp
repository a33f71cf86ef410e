#include "client_stub/launcher/client_configuration.hpp"

#include <cerrno>
#include <cstdlib>
#include <cstring>
#include <fstream>
#include <initializer_list>
#include <optional>
#include <sstream>

#include "client_stub/session/server_list.hpp"
#include "protocol/units/byte_size.hpp"
#include "protocol/units/duration.hpp"
#include "protocol/units/toml.hpp"
#include "protocol/units/unclosed_string.hpp"
#include "protocol/wire/gpu_type.hpp"
#include "protocol/wire/utf8.hpp"

namespace gpuwire::launcher {

namespace {

namespace fs = std::filesystem;
using Failure = tl::unexpected<std::string>;

std::string at(const fs::path& file, const toml::node& node, const std::string& what) {
  return file.string() + ":" + std::to_string(node.source().begin.line) + ": " + what;
}

// ", got 0" for a value that fits the line.
std::string got(const toml::node& node) {
  constexpr size_t kBytesMax = 40;
  if (node.is_table() || node.is_array()) return {};
  std::ostringstream text;
  node.visit([&](const auto& one) { text << one; });
  std::string said = text.str();
  return said.size() > kBytesMax || said.find('\n') != std::string::npos ? std::string() : ", got " + said;
}

std::string must_be(const fs::path& file, std::string_view key, const toml::node& node, const std::string& what) {
  return at(file, node, std::string(key) + " must be " + what + got(node));
}

// Returns a file relative to the configuration's folder, or to the home folder for "~/...".
std::string path_of(const std::string& text, const fs::path& file) {
  const char* home = std::getenv("HOME");
  if (text.starts_with("~/") && home) return (fs::path(home) / text.substr(2)).string();
  return (file.parent_path() / text).lexically_normal().string();
}

constexpr const char* kServerOrServers = "either server or servers can be said, not both";

tl::expected<void, std::string> read_servers(const fs::path& file, const toml::node& node, ClientSettings& settings) {
  const std::string what = "a list of 1 to " + std::to_string(client::kServersMax) + " names in quotes";
  const toml::array* list = node.as_array();
  if (!list || list->empty() || list->size() > client::kServersMax)
    return Failure(must_be(file, "servers", node, what));
  if (!settings.server.empty()) return Failure(at(file, node, kServerOrServers));
  for (const toml::node& one : *list) {
    auto name = one.value_exact<std::string>();
    if (!name || name->empty() || name->find(',') != std::string::npos)
      return Failure(must_be(file, "servers", one, what));
    settings.server += (settings.server.empty() ? "" : ",") + *name;
  }
  return {};
}

tl::expected<void, std::string> read_setting(const fs::path& file, std::string_view key, const toml::node& node,
                                             ClientSettings& settings) {
  if (key == "gpus") {
    auto count = node.value_exact<int64_t>();
    if (!count || *count < 1 || *count > int64_t(kGpusMax))
      return Failure(must_be(file, key, node, "a number from 1 to " + std::to_string(kGpusMax)));
    settings.gpus = std::to_string(*count);
    return {};
  }
  if (key == "progress" || key == "queue") {
    auto on = node.value_exact<bool>();
    if (!on) return Failure(must_be(file, key, node, "true or false"));
    (key == "progress" ? settings.progress : settings.queue) = *on ? "on" : "off";
    return {};
  }
  if (key == "servers") return read_servers(file, node, settings);
  auto text = node.value_exact<std::string>();
  if (!text || text->empty()) return Failure(must_be(file, key, node, "a string in quotes"));
  if (key == "memory") {
    auto bytes = units::parse_byte_size(*text);
    if (!bytes) return Failure(at(file, node, "memory: " + bytes.error()));
    settings.memory = std::to_string(*bytes) + "B";
  } else if (key == "transport") {
    if (*text != "auto" && *text != "tcp" && *text != "shm" && *text != "rdma")
      return Failure(must_be(file, key, node, "auto, tcp, shm or rdma"));
    settings.transport = *text;
  } else if (key == "connect_patience") {
    if (auto patience_ms = units::parse_duration_ms(*text); !patience_ms)
      return Failure(at(file, node, "connect_patience: " + patience_ms.error()));
    settings.connect_patience = *text;
  } else if (key == "server") {
    if (!settings.server.empty()) return Failure(at(file, node, kServerOrServers));
    settings.server = *text;
  } else if (key == "gpu_type") {
    if (text->size() > wire::kGpuTypeBytesMax)
      return Failure(must_be(file, key, node, "1 to " + std::to_string(wire::kGpuTypeBytesMax) + " characters"));
    settings.gpu_type = *text;
  } else {
    (key == "identity" ? settings.identity
     : key == "ca"     ? settings.authorities
                       : settings.token) = path_of(*text, file);
  }
  return {};
}

bool is_setting(std::string_view key) {
  for (std::string_view known : {"server", "servers", "gpus", "memory", "gpu_type", "queue", "identity", "ca",
                                 "token_file", "transport", "progress", "connect_patience"})
    if (key == known) return true;
  return false;
}

// The settings of one table; `others` are keys that other readers use.
tl::expected<ClientSettings, std::string> read_settings(const fs::path& file, const toml::table& table,
                                                        std::initializer_list<std::string_view> others) {
  ClientSettings settings;
  for (const auto& [key, node] : table) {
    if (std::find(others.begin(), others.end(), key.str()) != others.end()) continue;
    if (!is_setting(key.str()))
      return Failure(at(file, node, "\"" + std::string(key.str()) + "\" is not a client setting"));
    if (auto read = read_setting(file, key.str(), node, settings); !read) return Failure(read.error());
  }
  return settings;
}

struct File {
  ClientSettings general;
  std::map<std::string, ClientSettings> profiles;
  std::string usual_profile;
};

tl::expected<std::string, std::string> text_of(const fs::path& file) {
  std::ifstream in(file);
  if (!in && (errno == ENOENT || errno == ENOTDIR)) return std::string();
  std::string text(kConfigurationBytesMax + 1, '\0');
  in.read(text.data(), std::streamsize(text.size()));
  if (in.bad() || !in.eof())
    return Failure(file.string() + ": " +
                   (in.eof() || errno ? std::strerror(errno) : "too long for a configuration file"));
  text.resize(size_t(in.gcount()));
  return text;
}

tl::expected<File, std::string> read_file(const fs::path& path) {
  File file;
  if (path.empty()) return file;
  auto text = text_of(path);
  if (!text) return Failure(text.error());
  if (const size_t line = wire::line_without_utf8(*text))
    return Failure(path.string() + ":" + std::to_string(line) + ": is no UTF-8");
  toml::parse_result parsed = toml::parse(*text, path.string());
  if (const size_t line = parsed ? 0 : units::line_of_unclosed_string(*text))
    return Failure(path.string() + ":" + std::to_string(line) + ": a quote is opened here and not closed");
  if (!parsed)
    return Failure(path.string() + ":" + std::to_string(parsed.error().source().begin.line) + ": " +
                   std::string(parsed.error().description()));
  const toml::table& table = parsed.table();
  auto general = read_settings(path, table, {"profile", "profiles"});
  if (!general) return Failure(general.error());
  file.general = *general;
  if (const toml::node* usual = table.get("profile")) {
    auto name = usual->value_exact<std::string>();
    if (!name) return Failure(must_be(path, "profile", *usual, "the name of one of [profiles]"));
    file.usual_profile = *name;
  }
  if (const toml::node* profiles = table.get("profiles")) {
    if (!profiles->is_table()) return Failure(must_be(path, "profiles", *profiles, "tables [profiles.NAME]"));
    for (const auto& [name, node] : *profiles->as_table()) {
      if (!node.is_table())
        return Failure(must_be(path, "[profiles." + std::string(name.str()) + "]", node, "a table"));
      auto settings = read_settings(path, *node.as_table(), {});
      if (!settings) return Failure(settings.error());
      file.profiles[std::string(name.str())] = *settings;
    }
  }
  return file;
}

// `second` fills the settings that `first` lacks.
ClientSettings merged(const ClientSettings& first, const ClientSettings& second) {
  ClientSettings out = first;
  for (auto member :
       {&ClientSettings::server, &ClientSettings::identity, &ClientSettings::authorities, &ClientSettings::token,
        &ClientSettings::gpus, &ClientSettings::memory, &ClientSettings::transport, &ClientSettings::progress,
        &ClientSettings::connect_patience, &ClientSettings::gpu_type, &ClientSettings::queue})
    if ((out.*member).empty()) out.*member = second.*member;
  return out;
}

}  // namespace

ConfigurationFiles configuration_files(const fs::path& command_folder) {
  ConfigurationFiles files;
  const char* configuration = std::getenv("XDG_CONFIG_HOME");
  const char* home = std::getenv("HOME");
  if (configuration && *configuration == '/') files.user = fs::path(configuration) / "gpuwire/config.toml";
  else if (home && *home) files.user = fs::path(home) / ".config/gpuwire/config.toml";
  fs::path prefix = command_folder.parent_path().parent_path().parent_path();  // of prefix/lib/gpuwire/commands
  files.system = (prefix == "/usr" ? fs::path("/etc") : prefix / "etc") / "gpuwire/client.toml";
  return files;
}

tl::expected<ClientConfiguration, std::string> read_client_configuration(const ConfigurationFiles& files,
                                                                         const std::string& profile) {
  auto user = read_file(files.user);
  if (!user) return Failure(user.error());
  auto system = read_file(files.system);
  if (!system) return Failure(system.error());
  std::string name = !profile.empty()               ? profile
                     : !user->usual_profile.empty() ? user->usual_profile
                                                    : system->usual_profile;
  ClientConfiguration configuration{.profile = {}, .general = merged(user->general, system->general)};
  if (name.empty()) return configuration;
  if (!user->profiles.contains(name) && !system->profiles.contains(name))
    return Failure("there is no profile \"" + name + "\" in " + files.user.string() + " or " + files.system.string());
  configuration.profile = merged(user->profiles[name], system->profiles[name]);
  return configuration;
}

}  // namespace gpuwire::launcher
