// What the environment says about who the user is and what the session is to have. docs/cli.md describes the variables.
#pragma once

#include <cstdint>
#include <filesystem>
#include <string>
#include <string_view>

#include <tl/expected.hpp>

#include "protocol/tls/credentials.hpp"

namespace gpuwire::client {

inline constexpr uint32_t kGpusAskedMax = 1024;

// How the bytes of a session are to travel.
enum class TransportChoice : uint8_t {
  automatic,      // the fastest that the server offers
  tcp,            // the socket, also a Unix one
  shared_memory,  // to a server on this machine
  rdma,           // to a server that offers it
};

struct LoginSettings {
  // Named by a variable; else they are looked for in the user's configuration folder, for connections over TLS.
  std::filesystem::path identity, authorities, token;
  bool identity_given = false, authorities_given = false, token_given = false;
  uint32_t gpus = 0;          // 0: not said
  uint64_t memory_bytes = 0;  // 0: not said
  TransportChoice transport = TransportChoice::automatic;
};

// GPUWIRE_IDENTITY, GPUWIRE_CA, GPUWIRE_TOKEN_FILE, GPUWIRE_GPUS, GPUWIRE_MEMORY, GPUWIRE_TRANSPORT. The error names
// the variable.
tl::expected<LoginSettings, std::string> login_settings();

// What the files hold.
struct LoginSecrets {
  tls::Credentials credentials;
  std::string token;
};
// `encrypted`: for a connection over TLS, the only one for which files are read that nobody has named. The error names
// the file.
tl::expected<LoginSecrets, std::string> read_secrets(const LoginSettings& settings, bool encrypted);

}  // namespace gpuwire::client
