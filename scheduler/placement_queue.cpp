// The order of the queue: class, then the round of each tenant's session, then arrival.
//
// A tenant's nth waiting session is in the nth round from the current one, so that a tenant with one session does not
// wait behind all sessions of another tenant. Rounds advance while any session of the class waits: a tenant that has
// had a turn is in a later round, and a tenant that has not waited has no claim on earlier ones.
#include <algorithm>

#include "scheduler/placement_state.hpp"

namespace gpuwire::scheduler {

bool Placement::State::before(const Waiting& a, const Waiting& b) {
  return std::tuple(a.request.service_class, a.round, a.arrival) <
         std::tuple(b.request.service_class, b.round, b.arrival);
}

void Placement::State::enter(const PlacementRequest& request, uint64_t round_least) {
  ++arrivals;
  queue.push_back({.request = request, .arrival = arrivals, .round_least = round_least, .newer_from = arrivals});
  arrange();
}

void Placement::State::revise(Waiting& waiting, const PlacementRequest& request) {
  if (waiting.request.service_class != request.service_class)
    waiting.round_least = rounds[request.service_class].current;
  waiting.request = request;
  arrange();
}

void Placement::State::count_turn(const Waiting& waiting) {
  const PlacementRequest& request = waiting.request;
  uint64_t first = waiting.round;
  for (const Waiting& other : queue) {
    if (other.request.tenant == request.tenant && other.request.service_class == request.service_class)
      first = std::min(first, other.round);
  }
  Rounds& of = rounds[request.service_class];
  of.served[request.tenant] = of.current = std::max(of.current, first);
}

void Placement::State::arrange() {
  std::erase_if(rounds, [&](const auto& one) {
    return std::none_of(queue.begin(), queue.end(),
                        [&](const Waiting& other) { return other.request.service_class == one.first; });
  });
  std::sort(queue.begin(), queue.end(), [](const Waiting& a, const Waiting& b) { return a.arrival < b.arrival; });
  std::map<std::pair<ServiceClass, TenantId>, uint64_t> last;
  for (Waiting& one : queue) {
    const PlacementRequest& request = one.request;
    auto [round, first] = last.try_emplace({request.service_class, request.tenant}, 0);
    one.round = one.round_least;
    if (!first) one.round = std::max(one.round, round->second + 1);
    else if (auto of = rounds.find(request.service_class); of != rounds.end()) {
      if (auto served = of->second.served.find(request.tenant); served != of->second.served.end())
        one.round = std::max(one.round, served->second + 1);
    }
    round->second = one.round;
  }
  std::sort(queue.begin(), queue.end(), before);
}

}  // namespace gpuwire::scheduler
