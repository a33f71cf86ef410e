// The options of a command that say who the user is and what the session is to have. They only set the environment for what comes after.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>

namespace CLI {
class App;
}

namespace gpuwire::launcher {

struct LoginOptions {
  std::string identity, authorities, token;  // files; empty: as the environment says
  unsigned gpus = 0;                          // 0: not said
  uint64_t memory_bytes = 0;                  // 0: not said
};

// `resources`: also --gpus and --memory.
void add_login_options(CLI::App& app, LoginOptions& options, bool resources);
// Is this word an option that takes the word behind it?
bool takes_value(std::string_view word);
// Files become absolute: a program may change its folder before its first call.
void set_environment(const LoginOptions& options);

// For --help.
inline constexpr const char* kLoginEnvironment =
    "  GPUWIRE_IDENTITY        file with certificate and key, when --identity is not given\n"
    "  GPUWIRE_CA              file with the server's CA, when --ca is not given\n"
    "  GPUWIRE_TOKEN_FILE      file with a token, when --token-file is not given\n";

}  // namespace gpuwire::launcher
