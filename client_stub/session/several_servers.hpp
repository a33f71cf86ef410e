// A session with the best of several servers: the client asks all of them, and uses the first in rank that accepts.
#pragma once

#include <chrono>
#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include <tl/expected.hpp>

#include "client_stub/session/server_choice.hpp"
#include "client_stub/session/server_offer.hpp"
#include "client_stub/session/session.hpp"
#include "client_stub/session/start_error.hpp"

namespace gpuwire::client {

// The rank of a server that has answered `error` instead of an offer.
ServerOffer offer_of(const SessionStartError& error);

// Asks all servers concurrently whether a program with the environment's GPUs and memory would start there. Begins no
// session. The threads of this function end before it returns.
std::vector<ServerOffer> survey_servers(const std::vector<std::string>& servers);

// The basis of the choice, and the function that begins a session with one of the servers. Tests pass their own.
struct ServersToChoose {
  std::vector<std::string> servers;
  ServerWish wish;
  std::function<std::vector<ServerOffer>()> ask;
  std::function<tl::expected<std::unique_ptr<Session>, SessionStartError>(const std::string& server)> start;
  std::function<void(const std::string& line)> told;
  // Waits before all servers are asked again, because none is reachable. Returns false when the time is over.
  std::function<bool()> wait;
};
struct ChosenSession {
  std::unique_ptr<Session> session;
  std::string server;
};
// Skips a dead server, and a full one if the program is not to wait.
tl::expected<ChosenSession, SessionStartError> begin_with_best(const ServersToChoose& choice);

// The server that this process has chosen from a list, so that CUDA and NVML of one process use the same server.
// Thread: any.
std::optional<std::string> chosen_before(const std::string& list);
void remember_chosen(const std::string& list, const std::string& server);

}  // namespace gpuwire::client
