// The choice among several servers for a program, by the servers' own answers.
#pragma once

#include <span>
#include <string>
#include <vector>

#include "client_stub/session/server_offer.hpp"

namespace gpuwire::client {

struct ServerWish {
  unsigned gpus = 0;     // 0: not said
  std::string gpu_type;  // as wire::is_of_type() has it; empty: any
};

struct ServerRanking {
  std::vector<size_t> order;     // indices of those that may do, the best first
  std::vector<std::string> why;  // of each server: why a program does not start there now; empty: it does, or may
};

// The order is: servers where the program would start now, then servers without an answer, then servers where it would
// wait. Among the first, the order is by the GPUs, as many as are wanted, with the fewest sessions, the lowest load (in
// steps of a tenth) and the most free memory (in steps of an eighth). Among the last, it is by the start that a server
// estimates, and, if no server can estimate one, by the place in the queue. Equal servers keep the order in which they
// were named. A server that refuses the program, cannot be asked, or has too few GPUs of the type is left out.
ServerRanking rank_servers(std::span<const ServerOffer> offers, const ServerWish& wish);

// "using gpu2; passed over: gpu1 (connection refused)": of those that were named before it. Empty: none is passed over.
std::string chosen_line(std::span<const std::string> servers, const ServerRanking& ranking, size_t chosen);
// Why none will do, in one phrase.
std::string none_line(std::span<const std::string> servers, const ServerRanking& ranking);

}  // namespace gpuwire::client
