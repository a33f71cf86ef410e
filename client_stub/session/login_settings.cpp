#include "client_stub/session/login_settings.hpp"

#include <charconv>
#include <cstdlib>
#include <optional>

#include <fmt/format.h>

#include "protocol/units/byte_size.hpp"

namespace gpuwire::client {

namespace {

const char* variable(const char* name) {
  const char* value = std::getenv(name);
  return value && *value ? value : nullptr;
}

std::filesystem::path configuration_folder() {
  if (const char* folder = variable("XDG_CONFIG_HOME")) return std::filesystem::path(folder) / "gpuwire";
  if (const char* home = variable("HOME")) return std::filesystem::path(home) / ".config/gpuwire";
  return {};
}

// Named by the variable, or the file of that name in the configuration folder if there is one.
void find_file(const char* name, const char* usual, std::filesystem::path& file, bool& given) {
  given = variable(name) != nullptr;
  if (given) {
    file = variable(name);
    return;
  }
  auto folder = configuration_folder();
  std::error_code error;
  if (!folder.empty() && std::filesystem::exists(folder / usual, error)) file = folder / usual;
}

std::optional<TransportChoice> transport_named(std::string_view name) {
  if (name == "auto") return TransportChoice::automatic;
  if (name == "tcp") return TransportChoice::tcp;
  if (name == "shm") return TransportChoice::shared_memory;
  if (name == "rdma") return TransportChoice::rdma;
  return std::nullopt;
}

}  // namespace

tl::expected<LoginSettings, std::string> login_settings() {
  LoginSettings settings;
  find_file("GPUWIRE_IDENTITY", "identity.pem", settings.identity, settings.identity_given);
  find_file("GPUWIRE_CA", "ca.pem", settings.authorities, settings.authorities_given);
  find_file("GPUWIRE_TOKEN_FILE", "token", settings.token, settings.token_given);
  if (const char* gpus = variable("GPUWIRE_GPUS")) {
    std::string_view text = gpus;
    auto [rest, error] = std::from_chars(text.data(), text.data() + text.size(), settings.gpus);
    if (error != std::errc() || rest != text.data() + text.size() || settings.gpus == 0 ||
        settings.gpus > kGpusAskedMax)
      return tl::unexpected(fmt::format("GPUWIRE_GPUS must be a number from 1 to {}, got {}", kGpusAskedMax, text));
  }
  if (const char* memory = variable("GPUWIRE_MEMORY")) {
    auto bytes = units::parse_byte_size(memory);
    if (!bytes) return tl::unexpected("GPUWIRE_MEMORY: " + bytes.error());
    settings.memory_bytes = *bytes;
  }
  if (const char* name = variable("GPUWIRE_TRANSPORT")) {
    auto transport = transport_named(name);
    if (!transport)
      return tl::unexpected(fmt::format("GPUWIRE_TRANSPORT must be auto, tcp, shm or rdma, got {}", name));
    settings.transport = *transport;
  }
  return settings;
}

tl::expected<LoginSecrets, std::string> read_secrets(const LoginSettings& settings, bool encrypted) {
  LoginSecrets secrets;
  // Who names a token (a batch system, for a job) wants to be that tenant, and not the one whose certificate lies in
  // the home folder.
  bool identity = !settings.identity.empty() && (settings.identity_given || (encrypted && !settings.token_given));
  // A token beside an identity that nobody has named is the weaker of two defaults.
  bool token = !settings.token.empty() && (settings.token_given || (encrypted && !identity));
  bool authorities = !settings.authorities.empty() && (settings.authorities_given || encrypted);
  if (identity) {
    auto credentials = tls::read_identity(settings.identity);
    if (!credentials) return tl::unexpected(credentials.error());
    secrets.credentials = std::move(*credentials);
    // The bundle's own authority stands, unless another was named.
    authorities = authorities && (settings.authorities_given || secrets.credentials.authorities.empty());
  }
  if (authorities)
    if (auto read = tls::read_authorities(settings.authorities, secrets.credentials); !read)
      return tl::unexpected(read.error());
  if (token) {
    auto read = tls::read_token(settings.token);
    if (!read) return tl::unexpected(read.error());
    secrets.token = std::move(*read);
  }
  return secrets;
}

}  // namespace gpuwire::client
