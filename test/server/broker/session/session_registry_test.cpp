#include <chrono>
#include <map>

#include <doctest/doctest.h>

#include "server/broker/session/session_registry.hpp"

using namespace gpuwire;
using namespace gpuwire::server;

namespace {

struct Looked {
  std::chrono::steady_clock::time_point now{std::chrono::hours(1)};
  SessionRegistry registry{[this] { return now; }};
  std::map<SessionEvent::Kind, unsigned> told;

  Looked() {
    registry.observe([this](const SessionEvent& event) { ++told[event.kind]; });
  }
  scheduler::SessionId running() {
    scheduler::SessionId session = registry.add({.tenant = "anna"}).number;
    registry.admitted(session, {0});
    registry.begun(session, "client");
    return session;
  }
  void lose(scheduler::SessionId session) { registry.detached(session, std::chrono::seconds(30), "it was cut"); }
};

}  // namespace

TEST_CASE("losses and refused resumptions of a session are told a number of times at once, and one now and then") {
  Looked looked;
  auto& [now, registry, told] = looked;
  scheduler::SessionId session = looked.running(), other = looked.running();
  for (unsigned i = 0; i < 10 * kSessionEventsAtOnce; ++i) {
    looked.lose(session);
    CHECK(registry.find(session)->state == SessionState::detached);
    registry.resume_refused(session, "not its client's");
    registry.attached(session);
    CHECK(registry.find(session)->state == SessionState::running);
  }
  using Kind = SessionEvent::Kind;
  CHECK(told[Kind::detached] == kSessionEventsAtOnce);
  CHECK(told[Kind::attached] == kSessionEventsAtOnce);
  CHECK(told[Kind::resume_refused] == kSessionEventsAtOnce);
  CHECK(registry.find(session)->losses.untold() == 9 * kSessionEventsAtOnce);
  CHECK(registry.find(session)->refused_resumptions.untold() == 9 * kSessionEventsAtOnce);
  // Another session has a budget of its own.
  looked.lose(other);
  CHECK(told[Kind::detached] == kSessionEventsAtOnce + 1);
  now += std::chrono::milliseconds(kSessionEventRefillMs);
  for (int i = 0; i < 2; ++i) {
    looked.lose(session);
    registry.attached(session);
  }
  CHECK(told[Kind::detached] == kSessionEventsAtOnce + 2);
}

TEST_CASE("a reconnection after a loss that an earlier server reported is reported by this one") {
  Looked looked;
  looked.registry.restore({.number = scheduler::SessionId(7), .tenant = "anna", .state = SessionState::detached});
  looked.registry.attached(scheduler::SessionId(7));
  CHECK(looked.told[SessionEvent::Kind::attached] == 1);
}
