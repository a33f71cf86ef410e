#include "client_stub/launcher/start_check.hpp"

#include <sys/prctl.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cerrno>
#include <csignal>
#include <cstdio>
#include <cstdlib>
#include <vector>

#include <fmt/format.h>

#include "client_stub/launcher/session_options.hpp"
#include "client_stub/session/server_list.hpp"
#include "client_stub/session/several_servers.hpp"
#include "protocol/units/json.hpp"

namespace gpuwire::launcher {

namespace {

using client::OfferedGpu;
using client::ServerOffer;
using client::ServerRanking;
using client::ServerWish;
using Json = nlohmann::ordered_json;

constexpr double kGiB = double(1ull << 30);

enum class Answer : uint8_t { yes, queued, no, unknown };

const char* word_of(Answer answer) {
  switch (answer) {
    case Answer::yes: return "yes";
    case Answer::queued: return "queued";
    case Answer::no: return "no";
    case Answer::unknown: break;
  }
  return "unknown";
}

// `may`: the ranking includes the server.
Answer answer_of(const ServerOffer& offer, bool may) {
  if (!may) return Answer::no;
  switch (offer.start) {
    case ServerOffer::Start::now: return Answer::yes;
    case ServerOffer::Start::queued: return Answer::queued;
    case ServerOffer::Start::no: return Answer::no;
    case ServerOffer::Start::unknown: break;
  }
  return Answer::unknown;
}

int exit_code_of(Answer answer) {
  return answer == Answer::yes ? kWouldStart : answer == Answer::queued ? kWouldWait : kWouldNotStart;
}

std::string time_text(uint64_t seconds) {
  constexpr uint64_t kMinute = 60, kHour = 3600;
  if (seconds < kMinute) return fmt::format("{} s", seconds);
  if (seconds < kHour) return fmt::format("{} min", seconds / kMinute);
  return fmt::format("{} h {} min", seconds / kHour, seconds / kMinute % kMinute);
}

std::string line_of(const ServerOffer& offer, Answer answer, const std::string& why) {
  switch (answer) {
    case Answer::yes: return "the program would start now";
    case Answer::queued: {
      const std::string when =
          offer.after_s ? fmt::format("would start in about {}", time_text(*offer.after_s)) : "would wait";
      return fmt::format("the program {}, at {}", when, why);
    }
    case Answer::no: return "the program would not start: " + why;
    case Answer::unknown: break;
  }
  return "the server does not say (it is of an older release, or is asked too often)";
}

std::string gpu_line(const OfferedGpu& gpu) {
  return fmt::format("  {}: {:.1f} of {:.1f} GiB free, {} program{}, {} % busy\n", gpu.name,
                     double(gpu.free_bytes) / kGiB, double(gpu.total_bytes) / kGiB, gpu.sessions,
                     gpu.sessions == 1 ? "" : "s", gpu.busy_permille / 10);
}

Json json_of(const std::string& server, const ServerOffer& offer, Answer answer, const std::string& why) {
  Json out = {{"server", server}, {"answer", word_of(answer)}};
  if (answer == Answer::queued) {
    out["place"] = offer.place;
    out["waiting"] = offer.waiting;
    out["start_in_s"] = offer.after_s ? Json(*offer.after_s) : Json(nullptr);
  }
  out["why"] = answer == Answer::queued ? offer.why : why;
  out["gpus"] = Json::array();
  for (const OfferedGpu& gpu : offer.gpus)
    out["gpus"].push_back({{"name", gpu.name},
                           {"memory_free_bytes", gpu.free_bytes},
                           {"memory_bytes", gpu.total_bytes},
                           {"programs", gpu.sessions},
                           {"busy", double(gpu.busy_permille) / 1000}});
  return out;
}

ServerWish wish_of_environment() {
  const char* gpus = std::getenv("GPUWIRE_GPUS");
  const char* type = std::getenv("GPUWIRE_GPU_TYPE");
  return {.gpus = gpus ? unsigned(std::strtoul(gpus, nullptr, 10)) : 0, .gpu_type = type ? type : ""};
}

// Loading libcuda.so.1 starts the recording of a program's calls; here it is loaded only for a query.
void observe_nothing() {
  for (const char* variable : {"GPUWIRE_TRACE", "GPUWIRE_PROFILE_FILE", "GPUWIRE_STATS", "GPUWIRE_ACCOUNTS"})
    unsetenv(variable);
}

// An exit code beside the indices of servers.
constexpr int kNoServer = 255;
static_assert(client::kServersMax < kNoServer);

}  // namespace

StartCheck start_check(std::span<const std::string> servers, std::span<const ServerOffer> offers,
                       const ServerWish& wish, bool json) {
  const ServerRanking ranking = rank_servers(offers, wish);
  std::vector<bool> may(servers.size());
  for (size_t i : ranking.order) may[i] = true;
  const Answer best = ranking.order.empty() ? Answer::no : answer_of(offers[ranking.order.front()], true);
  Json all = Json::array();
  std::string text;
  for (size_t i = 0; i < servers.size(); ++i) {
    const Answer answer = answer_of(offers[i], may[i]);
    all.push_back(json_of(servers[i], offers[i], answer, ranking.why[i]));
    text += fmt::format("{}: {}\n", servers[i], line_of(offers[i], answer, ranking.why[i]));
    for (const OfferedGpu& gpu : offers[i].gpus) text += gpu_line(gpu);
  }
  const std::string chosen = ranking.order.empty() ? "" : servers[ranking.order.front()];
  if (servers.size() > 1)
    text += chosen.empty() ? "none of them would be used\n" : fmt::format("{} would be used\n", chosen);
  if (json) {
    Json out = {{"answer", word_of(best)},
                {"server", chosen.empty() ? Json(nullptr) : Json(chosen)},
                {"servers", std::move(all)}};
    text = dump_json(out, 2, false, JsonErrorHandler::replace) + "\n";
  }
  return {.exit_code = exit_code_of(best), .text = std::move(text)};
}

int check_start(bool json) {
  observe_nothing();
  const std::vector<std::string> servers = named_servers();
  const StartCheck check = start_check(servers, client::survey_servers(servers), wish_of_environment(), json);
  std::fwrite(check.text.data(), 1, check.text.size(), stdout);
  return check.exit_code;
}

namespace {

// Prints a line about the skipped servers. Returns the index of the chosen server, or kNoServer.
int choose(const char* command, const std::vector<std::string>& servers) {
  observe_nothing();
  const ServerRanking ranking = rank_servers(client::survey_servers(servers), wish_of_environment());
  if (ranking.order.empty()) return kNoServer;
  const size_t chosen = ranking.order.front();
  if (std::string line = chosen_line(servers, ranking, chosen); !line.empty())
    std::fprintf(stderr, "%s: %s\n", command, line.c_str());
  return int(chosen);
}

}  // namespace

void choose_server(const char* command) {
  const std::vector<std::string> servers = named_servers();
  if (servers.size() < 2) return;
  // A child asks, so that no state of the library stays in the process that becomes the program.
  const pid_t child = ::fork();
  if (child == 0) {
    ::prctl(PR_SET_PDEATHSIG, SIGKILL);
    ::_exit(choose(command, servers));
  }
  int status = 0;
  while (child > 0 && ::waitpid(child, &status, 0) < 0 && errno == EINTR) {}
  const size_t chosen = child > 0 && WIFEXITED(status) ? size_t(WEXITSTATUS(status)) : kNoServer;
  if (chosen < servers.size()) setenv("GPUWIRE_SERVER", servers[chosen].c_str(), 1);
}

}  // namespace gpuwire::launcher
