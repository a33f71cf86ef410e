// A policy and sessions whose pages the test writes by hand.
#pragma once

#include <algorithm>
#include <map>

#include <doctest/doctest.h>

#include "scheduler/policy.hpp"

namespace gpuwire::scheduler::test {

using namespace std::chrono_literals;

inline constexpr SessionId kA{1}, kB{2}, kC{3}, kD{4};
inline constexpr TenantId kRed{1}, kBlue{2}, kGreen{3};

class Desk {
 public:
  Desk() : policy(Policy::Settings{}) {}

  void tenant(TenantId id, ServiceClass of = ServiceClass::batch, double weight = 1) { policy.set_tenant(id, {.service_class = of, .weight = weight}); }
  void session(SessionId id, TenantId tenant, std::vector<DeviceIndex> devices = {0}) {
    policy.add_session(id, tenant, devices, now);
    pages[id] = {};
    gates[id] = Gate{.open = false};
  }
  void end(SessionId id) {
    policy.remove_session(id, now);
    pages.erase(id);
    gates.erase(id);
    decide();
  }

  // The session's state from now on.
  void wait(SessionId id) { set(id, true, false); }
  void work(SessionId id) { set(id, false, true); }
  void rest(SessionId id) { set(id, false, false); }

  void decide() {
    for (auto& [id, page] : pages) policy.observe(id, page, now);
    for (const GateChange& change : policy.decide(now)) gates[change.session] = change.gate;
    const std::string wrong = policy.check();
    CHECK_MESSAGE(wrong.empty(), wrong);
  }
  // Lets time pass; sessions in flight are busy, and those that wait at an open gate come through it. Decides when the policy wants to.
  void pass(Duration duration) {
    const Time until = now + duration;
    decide();
    while (now < until) {
      const Time next = std::min(until, std::max(policy.next_decision().value_or(until), now + 10us));
      for (auto& [id, page] : pages) (page.in_flight ? page.busy : page.quiet) += page.waiting ? 0ns : next - now;
      now = next;
      for (auto& [id, page] : pages) {
        if (page.waiting && gates[id].open) work(id);
        else if (saturating[id] && page.in_flight && !gates[id].open) wait(id);
      }
      decide();
    }
  }
  bool open(SessionId id) { return gates[id].open; }

  Policy policy;
  Time now = 1s;
  std::map<SessionId, Observation> pages;
  std::map<SessionId, Gate> gates;
  std::map<SessionId, bool> saturating;      // drains at once when its gate closes, and waits again

 private:
  void set(SessionId id, bool waiting, bool in_flight) {
    Observation& page = pages[id];
    if (in_flight && !page.in_flight) {
      ++page.bursts;
      ++page.submissions;
      page.first_start = now;
    }
    if (!in_flight && page.in_flight) page.last_end = now;
    page.waiting = waiting;
    page.in_flight = in_flight;
  }
};

}  // namespace gpuwire::scheduler::test
