// A policy and sessions whose pages the test writes by hand.
#pragma once

#include <algorithm>
#include <initializer_list>
#include <map>

#include <doctest/doctest.h>

#include "scheduler/policy.hpp"

namespace gpuwire::scheduler::test {

using namespace std::chrono_literals;

inline constexpr SessionId kA{1}, kB{2}, kC{3}, kD{4};
inline constexpr TenantId kRed{1}, kBlue{2}, kGreen{3};

class Desk {
 public:
  explicit Desk(const Policy::Settings& settings = {}) : policy(settings) {}

  void tenant(TenantId id, const TenantPolicy& of = {}) { policy.set_tenant(id, of); }
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
  // It works, and nothing of it ends.
  void hang(SessionId id) {
    work(id);
    stuck[id] = true;
  }

  // They always have work: each drains at once when its gate closes, and waits again.
  void saturate(std::initializer_list<SessionId> ids) {
    for (const SessionId id : ids) {
      saturating[id] = true;
      wait(id);
    }
  }

  void decide() {
    for (auto& [id, page] : pages) policy.observe(id, page, now);
    for (const GateChange& change : policy.decide(now)) gates[change.session] = change.gate;
    const std::string wrong = policy.check();
    CHECK_MESSAGE(wrong.empty(), wrong);
  }
  // Comes through its gate, which is free for it.
  void begin_work(SessionId id) {
    wait(id);
    decide();
    work(id);
  }
  // Lets time pass; sessions in flight are busy, and those that wait at an open gate come through it. Decides when the
  // policy wants to.
  void pass(Duration duration) {
    const Time until = now + duration;
    decide();
    while (now < until) {
      const Time next = std::min(until, std::max(policy.next_decision().value_or(until), now + 10us));
      for (auto& [id, page] : pages) {
        (page.in_flight ? page.busy : page.quiet) += page.waiting ? 0ns : next - now;
        if (page.in_flight && !stuck[id]) ++page.completions;
      }
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
  std::map<SessionId, bool> saturating, stuck;

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

// With a session of red (kA) and one of blue (kB) on the same device.
class Pair : public Desk {
 public:
  explicit Pair(const TenantPolicy& red = {}, const TenantPolicy& blue = {}, const Policy::Settings& settings = {})
      : Desk(settings) {
    tenant(kRed, red);
    tenant(kBlue, blue);
    session(kA, kRed);
    session(kB, kBlue);
  }
  Duration charged() const { return policy.gpu_time(kRed, 0) + policy.gpu_time(kBlue, 0); }
  // Red's part of what both were charged.
  double share_of_red() const {
    return std::chrono::duration<double>(policy.gpu_time(kRed, 0)) / std::chrono::duration<double>(charged());
  }
};

}  // namespace gpuwire::scheduler::test
