#include "client_stub/session/server_choice.hpp"

#include <algorithm>
#include <tuple>

#include <fmt/format.h>

#include "protocol/wire/gpu_type.hpp"

namespace gpuwire::client {

namespace {

using Start = ServerOffer::Start;

constexpr unsigned kBusyStepPermille = 100;
constexpr uint64_t kFreeSteps = 8;

uint64_t free_steps(const OfferedGpu& gpu) {
  const uint64_t step = gpu.total_bytes / kFreeSteps;
  return step ? std::min(gpu.free_bytes / step, kFreeSteps) : 0;
}

// Smaller is less loaded.
using Load = std::tuple<uint64_t, unsigned, uint64_t>;
Load load_of(const OfferedGpu& gpu) {
  return {gpu.sessions, gpu.busy_permille / kBusyStepPermille, kFreeSteps - free_steps(gpu)};
}

// The load of the most loaded GPU among those that the program would use, if it used the least loaded ones.
Load load_of(const ServerOffer& offer, const ServerWish& wish) {
  std::vector<Load> loads;
  for (const OfferedGpu& gpu : offer.gpus)
    if (wire::is_of_type(gpu.name, wish.gpu_type)) loads.push_back(load_of(gpu));
  if (loads.empty()) return {};
  std::sort(loads.begin(), loads.end());
  return loads[std::clamp<size_t>(wish.gpus, 1, loads.size()) - 1];
}

struct Verdict {
  bool may = false;  // the program could use it
  std::string why;   // why it does not start now; empty: it starts, or may
};

// A server that does not report its GPUs may have that type.
std::string lacks_type(const ServerOffer& offer, const ServerWish& wish) {
  if (offer.start == Start::unknown || wish.gpu_type.empty()) return {};
  const auto fitting = size_t(std::count_if(offer.gpus.begin(), offer.gpus.end(), [&](const OfferedGpu& gpu) {
    return wire::is_of_type(gpu.name, wish.gpu_type);
  }));
  if (fitting >= std::max(wish.gpus, 1u)) return {};
  return fmt::format("{} of its {} GPUs fit the type {}", fitting, offer.gpus.size(), wish.gpu_type);
}

Verdict judge(const ServerOffer& offer, const ServerWish& wish) {
  if (offer.start == Start::no) return {.may = false, .why = offer.why.empty() ? "it refuses the program" : offer.why};
  if (std::string lacks = lacks_type(offer, wish); !lacks.empty()) return {.may = false, .why = std::move(lacks)};
  if (offer.start != Start::queued) return {.may = true, .why = {}};
  std::string why = fmt::format("place {} of {} in the queue", offer.place, offer.waiting);
  if (!offer.why.empty()) why += ": " + offer.why;
  return {.may = true, .why = std::move(why)};
}

unsigned rank_of(Start start) { return start == Start::now ? 0 : start == Start::unknown ? 1 : 2; }

}  // namespace

ServerRanking rank_servers(std::span<const ServerOffer> offers, const ServerWish& wish) {
  ServerRanking ranking;
  for (size_t i = 0; i < offers.size(); ++i) {
    Verdict verdict = judge(offers[i], wish);
    if (verdict.may) ranking.order.push_back(i);
    ranking.why.push_back(std::move(verdict.why));
  }
  auto key = [&](size_t i) {
    const ServerOffer& offer = offers[i];
    const bool now = offer.start == Start::now, waits = offer.start == Start::queued;
    return std::tuple(rank_of(offer.start), now ? load_of(offer, wish) : Load{},
                      waits ? offer.after_s.value_or(UINT64_MAX) : 0, waits ? offer.place : 0);
  };
  std::stable_sort(ranking.order.begin(), ranking.order.end(), [&](size_t a, size_t b) { return key(a) < key(b); });
  return ranking;
}

std::string chosen_line(std::span<const std::string> servers, const ServerRanking& ranking, size_t chosen) {
  std::string passed;
  for (size_t i = 0; i < chosen; ++i) {
    if (ranking.why[i].empty()) continue;
    passed += fmt::format("{}{} ({})", passed.empty() ? "" : ", ", servers[i], ranking.why[i]);
  }
  return passed.empty() ? std::string() : fmt::format("using {}; passed over: {}", servers[chosen], passed);
}

std::string none_line(std::span<const std::string> servers, const ServerRanking& ranking) {
  std::string all;
  for (size_t i = 0; i < servers.size(); ++i)
    all += fmt::format("{}{} ({})", all.empty() ? "" : ", ", servers[i], ranking.why[i]);
  return fmt::format("none of {} servers takes the program: {}", servers.size(), all);
}

}  // namespace gpuwire::client
