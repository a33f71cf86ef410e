#include "server/cli/admin_drain.hpp"

#include <algorithm>
#include <chrono>
#include <cstdint>
#include <cstdio>
#include <map>
#include <optional>
#include <thread>
#include <vector>

#include <fmt/format.h>

#include "protocol/units/duration.hpp"

namespace gpuwire::server {
namespace {

// While a GPU is drained: the interval of questions to the server, and of lines about a session that works.
constexpr std::chrono::milliseconds kDrainAskEvery{250};
constexpr std::chrono::seconds kDrainSayEvery{10};
constexpr uint64_t kDrainMsMax = uint64_t{365} * 24 * 3600 * 1000;  // a longer --timeout counts as this

int drain_failed(const std::string& reason) {
  std::fprintf(stderr, "gpuwire admin: %s\n", reason.c_str());
  return 1;
}

void say(const std::string& text) { std::fputs(text.c_str(), stdout); }

// Returns a line about each session whose state is news, of sessions that work at most one in kDrainSayEvery.
class DrainProgress {
 public:
  std::string news(const std::vector<RunningServer::DrainedSession>& sessions) {
    std::string lines;
    const auto now = std::chrono::steady_clock::now();
    for (const auto& [number, one] : said_)
      if (!one.away && std::ranges::find(sessions, number, &RunningServer::DrainedSession::id) == sessions.end())
        lines += fmt::format("session {}: it has ended\n", number);
    std::erase_if(said_, [&](const auto& one) {
      return std::ranges::find(sessions, one.first, &RunningServer::DrainedSession::id) == sessions.end();
    });
    for (const RunningServer::DrainedSession& session : sessions) {
      auto [at, first] = said_.try_emplace(session.id);
      Said& said = at->second;
      if (!first && said.away == session.away && (session.away || said.text == session.text || now < said.next))
        continue;
      said = {session.away, session.text, now + kDrainSayEvery};
      lines += fmt::format("session {}: {}{}\n", session.id, session.away ? "" : "not yet: ", session.text);
    }
    return lines;
  }

 private:
  struct Said {
    bool away = false;
    std::string text;
    std::chrono::steady_clock::time_point next;
  };
  std::map<uint64_t, Said> said_;
};

}  // namespace

int drain_gpu(const RunningServer& server, unsigned gpu, const std::string& timeout) {
  std::optional<std::chrono::steady_clock::time_point> until;
  if (!timeout.empty()) {
    auto timeout_ms = units::parse_duration_ms(timeout);
    if (!timeout_ms) return drain_failed("--timeout: " + timeout_ms.error());
    until = std::chrono::steady_clock::now() + std::chrono::milliseconds(std::min<uint64_t>(*timeout_ms, kDrainMsMax));
  }
  DrainProgress progress;
  for (bool first = true;; first = false) {
    auto state = first ? server.drain(gpu) : server.drain_of(gpu);
    if (!state) return drain_failed(state.error());
    if (!state->drained) return drain_failed(fmt::format("GPU {} is in use again: it was undrained meanwhile", gpu));
    if (first)
      say(
          fmt::format("GPU {} is drained{}: no session begins on it or returns to it before gpuwire admin undrain "
                      "{}\n",
                      gpu, state->changed ? "" : " already", gpu));
    say(progress.news(state->sessions));
    std::fflush(stdout);
    std::erase_if(state->sessions, [](const auto& session) { return session.away; });
    if (state->sessions.empty()) {
      say(fmt::format("no session has memory on GPU {}\n", gpu));
      return 0;
    }
    if (until && std::chrono::steady_clock::now() >= *until) {
      for (const RunningServer::DrainedSession& session : state->sessions)
        say(fmt::format("session {}: stays: {}\n", session.id, session.text));
      return drain_failed(
          fmt::format("{} session{} not suspended within {}; GPU {} is still drained, and the server goes on "
                      "asking",
                      state->sessions.size(), state->sessions.size() == 1 ? " was" : "s were", timeout, gpu));
    }
    std::this_thread::sleep_for(kDrainAskEvery);
  }
}

int undrain_gpu(const RunningServer& server, unsigned gpu) {
  auto state = server.undrain(gpu);
  if (!state) return drain_failed(state.error());
  say(fmt::format("GPU {} {}\n", gpu, state->changed ? "is in use again" : "was not drained"));
  return 0;
}

}  // namespace gpuwire::server
