// Asks servers whether a program would start: `gpuwire run --check`, and the choice among several servers.
#pragma once

#include <span>
#include <string>

#include "client_stub/session/server_choice.hpp"
#include "client_stub/session/server_offer.hpp"

namespace gpuwire::launcher {

// Exit codes of --check.
inline constexpr int kWouldStart = 0;
inline constexpr int kWouldNotStart = 1;  // or no server answers
inline constexpr int kWouldWait = 3;

struct StartCheck {
  int exit_code = kWouldNotStart;
  // Lines, or one JSON object.
  std::string text;
};

// The result of the servers' answers; `json`: the output's format.
StartCheck start_check(std::span<const std::string> servers, std::span<const client::ServerOffer> offers,
                       const client::ServerWish& wish, bool json);

// Asks the servers of the environment and prints their answers. Returns the exit code.
int check_start(bool json);

// Replaces several servers in GPUWIRE_SERVER by the one that the program will use, so that all its processes meet
// there; a line on stderr names the skipped ones. If no server is suitable, the variable stays, and the program's first
// CUDA call asks again.
void choose_server(const char* command);

}  // namespace gpuwire::launcher
