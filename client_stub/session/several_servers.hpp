// A session with the best of several servers: all are asked, and the program starts at the first that takes it.
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

// The rank in the choice of a server that has answered `error` in place of an offer.
ServerOffer offer_of(const SessionStartError& error);

// Asks them all, at once, whether a program with the environment's GPUs and memory would start there. Starts none.
// Threads: some of its own, which have ended when it returns.
std::vector<ServerOffer> survey_servers(const std::vector<std::string>& servers);

// The function that begins a session with one of the servers, and the basis of the choice. Tests pass their own.
struct ServersToChoose {
  std::vector<std::string> servers;
  ServerWish wish;
  std::function<std::vector<ServerOffer>()> ask;
  std::function<tl::expected<std::unique_ptr<Session>, SessionStartError>(const std::string& server)> start;
  std::function<void(const std::string& line)> told;
  // Waits before all are asked again, because nobody is there; false: long enough.
  std::function<bool()> wait;
};
struct ChosenSession {
  std::unique_ptr<Session> session;
  std::string server;
};
// A server that is dead, or full and the program is not to wait, is passed over.
tl::expected<ChosenSession, SessionStartError> begin_with_best(const ServersToChoose& choice);

// Which server this process has chosen out of a list, so that CUDA and NVML of one process reach the same one. Any
// thread.
std::optional<std::string> chosen_before(const std::string& list);
void remember_chosen(const std::string& list, const std::string& server);

}  // namespace gpuwire::client
