#include "client_stub/session/several_servers.hpp"

#include <atomic>
#include <utility>

#include "client_stub/session/ask.hpp"
#include "protocol/threads/parallel.hpp"
#include "protocol/wire/questions.hpp"

namespace gpuwire::client {

ServerOffer offer_of(const SessionStartError& error) {
  ServerOffer offer;
  const bool silent = error.cause.ends_with(wire::kUnknownQuestion) ||
                      error.cause.find(wire::kAsksTooOften) != std::string::npos ||
                      error.cause.ends_with(kAnswersNoQueries);
  if (silent) return offer;
  offer.start = ServerOffer::Start::no;
  offer.absent = error.absent;
  offer.why = error.cause;
  return offer;
}

std::vector<ServerOffer> survey_servers(const std::vector<std::string>& servers) {
  std::vector<ServerOffer> offers(servers.size());
  auto ask = [&](size_t i) {
    try {
      std::string answer;
      if (SessionStartError failed = ask_for_answer(servers[i], "check text", answer); failed.result != CUDA_SUCCESS)
        offers[i] = offer_of(failed);
      else if (auto offer = parse_offer(answer)) offers[i] = std::move(*offer);
    } catch (...) {  // no memory: the server counts as silent
    }
  };
  // One thread asks each server, so that an unreachable server delays no other.
  Parallel parallel(unsigned(servers.size()) - 1, std::chrono::microseconds(0));
  parallel.run(servers.size(), ask);
  return offers;
}

namespace {

// Returns whether no server listens, for example while all restart. A server that has answered does not count as
// absent.
bool all_absent(const std::vector<ServerOffer>& offers) {
  for (const ServerOffer& offer : offers)
    if (!offer.absent) return false;
  return true;
}

}  // namespace

tl::expected<ChosenSession, SessionStartError> begin_with_best(const ServersToChoose& choice) {
  for (;;) {
    const std::vector<ServerOffer> offers = choice.ask();
    ServerRanking ranking = rank_servers(offers, choice.wish);
    std::optional<SessionStartError> failed;
    for (size_t server : ranking.order) {
      if (std::string line = chosen_line(choice.servers, ranking, server); !line.empty()) choice.told(line);
      auto started = choice.start(choice.servers[server]);
      if (started) return ChosenSession{std::move(*started), choice.servers[server]};
      if (started.error().ended) return tl::unexpected(std::move(started.error()));
      failed = std::move(started.error());
      ranking.why[server] = failed->cause;
    }
    if (all_absent(offers) && choice.wait()) continue;
    SessionStartError none{.cause = none_line(choice.servers, ranking)};
    if (failed) none.result = failed->result, none.full = failed->full;
    none.refused = true;
    return tl::unexpected(std::move(none));
  }
}

namespace {

struct Chosen {
  std::string list, server;
};
// Never freed: a program's threads may still call while it exits, and a child of fork() has no lock to wait for.
// Release: the storing thread has written the object; acquire: the loading thread reads it.
std::atomic<const Chosen*> g_chosen{nullptr};

}  // namespace

std::optional<std::string> chosen_before(const std::string& list) {
  const Chosen* chosen = g_chosen.load(std::memory_order_acquire);
  if (!chosen || chosen->list != list) return std::nullopt;
  return chosen->server;
}

void remember_chosen(const std::string& list, const std::string& server) {
  if (chosen_before(list) != server) g_chosen.store(new Chosen{list, server}, std::memory_order_release);
}

}  // namespace gpuwire::client
