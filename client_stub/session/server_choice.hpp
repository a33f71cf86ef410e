// The choice of a server for a program, based on the servers' own answers.
#pragma once

#include <span>
#include <string>
#include <vector>

#include "client_stub/session/server_offer.hpp"

namespace gpuwire::client {

struct ServerWish {
  // 0: not set.
  unsigned gpus = 0;
  // As wire::is_of_type() has it; empty: any.
  std::string gpu_type;
};

struct ServerRanking {
  // Indices of the suitable servers, the best first.
  std::vector<size_t> order;
  // For each server the reason why a start there fails now; empty: it starts, or may.
  std::vector<std::string> why;
};

// The order is: servers where the program would start now, then servers without an answer, then servers where it would
// wait. The first group is ordered by the GPUs that the program would use: fewest sessions, lowest load (in steps of a
// tenth), most free memory (in steps of an eighth). The last group is ordered by the server's estimate of the start,
// or, if no server has one, by the place in the queue. Equal servers keep the user's order. A server that refuses the
// program, cannot be asked, or has too few GPUs of the type is left out.
ServerRanking rank_servers(std::span<const ServerOffer> offers, const ServerWish& wish);

// Returns "using gpu2; passed over: gpu1 (connection refused)", with the skipped servers before the chosen one. Empty:
// none was skipped.
std::string chosen_line(std::span<const std::string> servers, const ServerRanking& ranking, size_t chosen);
// Returns the reason why no server is suitable, in one phrase.
std::string none_line(std::span<const std::string> servers, const ServerRanking& ranking);

}  // namespace gpuwire::client
