#include "client_stub/session/login_settings.hpp"

#include <algorithm>
#include <charconv>
#include <optional>

#include <fmt/format.h>

#include "client_stub/session/environment.hpp"
#include "protocol/units/byte_size.hpp"
#include "protocol/units/duration.hpp"
#include "protocol/wire/gpu_type.hpp"

namespace gpuwire::client {

namespace {

const char* variable(const char* name) {
  const char* value = setting(name);
  return value && *value ? value : nullptr;
}

std::filesystem::path configuration_folder() {
  if (const char* folder = variable("XDG_CONFIG_HOME")) return std::filesystem::path(folder) / "gpuwire";
  if (const char* home = variable("HOME")) return std::filesystem::path(home) / ".config/gpuwire";
  return {};
}

// The variable's file, or else the file of that name in the configuration folder.
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
  if (const char* type = variable("GPUWIRE_GPU_TYPE")) {
    settings.gpu_type = type;
    if (settings.gpu_type.size() > wire::kGpuTypeBytesMax)
      return tl::unexpected(fmt::format("GPUWIRE_GPU_TYPE has {} characters at most", wire::kGpuTypeBytesMax));
  }
  if (const char* queue = variable("GPUWIRE_QUEUE")) {
    settings.waits = std::string_view(queue) != "off";
    if (settings.waits && std::string_view(queue) != "on")
      return tl::unexpected(fmt::format("GPUWIRE_QUEUE must be on or off, got {}", queue));
  }
  if (const char* given = variable("GPUWIRE_ANSWER_TIMEOUT")) {
    const std::string_view text = given;
    uint32_t seconds = 0;
    auto [rest, error] = std::from_chars(text.data(), text.data() + text.size(), seconds);
    const bool whole = error == std::errc() && rest == text.data() + text.size() && seconds != 0;
    if (!whole && text != "off")
      return tl::unexpected(fmt::format("GPUWIRE_ANSWER_TIMEOUT must be a number of seconds, or off, got {}", text));
    settings.answer_time_max = whole ? std::chrono::seconds(seconds) : kAnswerTimeOff;
  }
  if (const char* name = variable("GPUWIRE_TRANSPORT")) {
    auto transport = transport_named(name);
    if (!transport)
      return tl::unexpected(fmt::format("GPUWIRE_TRANSPORT must be auto, tcp, shm or rdma, got {}", name));
    settings.transport = *transport;
  }
  if (const char* text = variable(kConnectPatienceVariable)) {
    auto patience_ms = units::parse_duration_ms(text);
    if (!patience_ms) return tl::unexpected(fmt::format("{}: {}", kConnectPatienceVariable, patience_ms.error()));
    settings.connect_patience =
        std::chrono::milliseconds(std::min(*patience_ms, uint64_t(kConnectPatienceMost.count())));
  }
  return settings;
}

tl::expected<LoginSecrets, std::string> read_secrets(const LoginSettings& settings, bool encrypted) {
  LoginSecrets secrets;
  // A caller that names a token (a batch system, for a job) means the token's tenant, not the tenant of the certificate
  // in the home folder.
  bool identity = !settings.identity.empty() && (settings.identity_given || (encrypted && !settings.token_given));
  // If neither was named, the identity takes precedence over the token.
  bool token = !settings.token.empty() && (settings.token_given || (encrypted && !identity));
  bool authorities = !settings.authorities.empty() && (settings.authorities_given || encrypted);
  if (identity) {
    auto credentials = tls::read_identity(settings.identity);
    if (!credentials) return tl::unexpected(credentials.error());
    secrets.credentials = std::move(*credentials);
    // The bundle's own authority is used, unless another was named.
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
