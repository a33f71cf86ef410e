// The credentials and the session's resources in the environment. docs/cli.md describes the variables.
#pragma once

#include <chrono>
#include <cstdint>
#include <filesystem>
#include <string>
#include <string_view>

#include <tl/expected.hpp>

#include "protocol/tls/credentials.hpp"

namespace gpuwire::client {

inline constexpr uint32_t kGpusAskedMax = 1024;
// How long a starting program tries to reach a server that accepts no connections: longer than a restart takes.
inline constexpr std::chrono::milliseconds kConnectPatience{10'000}, kConnectPatienceMost{24 * 3600 * 1000};
inline constexpr const char* kConnectPatienceVariable = "GPUWIRE_CONNECT_PATIENCE";
// The default bound of a call's answer. A synchronise waits as long as its kernel runs, and some kernels run for days.
inline constexpr std::chrono::seconds kAnswerTimeMax = std::chrono::hours(7 * 24);
inline constexpr std::chrono::seconds kAnswerTimeOff = std::chrono::hours(100 * 365 * 24);

// The transport of a session's bytes.
enum class TransportChoice : uint8_t {
  automatic,      // the fastest that the server offers
  tcp,            // the socket, also a Unix one
  shared_memory,  // to a server on this machine
  rdma,           // to a server that offers it
};

struct LoginSettings {
  // Files that a variable names; otherwise those in the user's configuration folder, for connections over TLS only.
  std::filesystem::path identity, authorities, token;
  bool identity_given = false, authorities_given = false, token_given = false;
  // 0: not set.
  uint32_t gpus = 0;
  // 0: not set.
  uint64_t memory_bytes = 0;
  // A part of the GPUs' names (wire::is_of_type()); empty: any.
  std::string gpu_type;
  // In a queue, for as long as it takes.
  bool waits = true;
  TransportChoice transport = TransportChoice::automatic;
  std::chrono::milliseconds connect_patience = kConnectPatience;
  std::chrono::seconds answer_time_max = kAnswerTimeMax;
};

// GPUWIRE_IDENTITY, GPUWIRE_CA, GPUWIRE_TOKEN_FILE, GPUWIRE_GPUS, GPUWIRE_MEMORY, GPUWIRE_GPU_TYPE, GPUWIRE_QUEUE,
// GPUWIRE_TRANSPORT, GPUWIRE_CONNECT_PATIENCE, GPUWIRE_ANSWER_TIMEOUT. The error names the variable.
tl::expected<LoginSettings, std::string> login_settings();

// The content of the files.
struct LoginSecrets {
  tls::Credentials credentials;
  std::string token;

  bool name_anybody() const noexcept {
    return credentials.certificate || !credentials.authorities.empty() || !token.empty();
  }
};
// `encrypted`: also reads the default files, which are only for connections over TLS. The error names the file.
tl::expected<LoginSecrets, std::string> read_secrets(const LoginSettings& settings, bool encrypted);

}  // namespace gpuwire::client
