// Every change in every phase: what the table of a session's life says, written down a second time.
#include "server/broker/session/session_state.hpp"

#include <map>
#include <set>
#include <string>
#include <utility>

#include <doctest/doctest.h>

using namespace gpuwire::server;
using P = SessionPhase;
using C = SessionChange;
using A = SessionAction;

namespace {

// What is not in here stays in its phase and leads to nothing.
const std::map<std::pair<P, C>, SessionStep> kExpected{
    {{P::queued, C::placed}, {P::starting, A::start}},
    {{P::queued, C::refused}, {P::over, A::refuse}},
    {{P::queued, C::client_left}, {P::over, A::withdraw}},
    {{P::queued, C::stopped}, {P::over, A::refuse}},
    {{P::queued, C::overdue}, {P::over, A::withdraw}},

    {{P::starting, C::refused}, {P::over, A::refuse}},
    {{P::starting, C::worker_ready}, {P::granted, A::grant}},
    {{P::starting, C::worker_over}, {P::starting, A::want_worker}},
    {{P::starting, C::client_left}, {P::over, A::withdraw}},
    {{P::starting, C::stopped}, {P::over, A::refuse}},

    {{P::granted, C::refused}, {P::over, A::end}},
    {{P::granted, C::worker_over}, {P::replacing, A::want_worker}},
    {{P::granted, C::client_arrived}, {P::begins, A::give}},
    {{P::granted, C::client_left}, {P::over, A::withdraw}},
    {{P::granted, C::stopped}, {P::granted, A::remember}},
    {{P::granted, C::overdue}, {P::over, A::withdraw}},

    {{P::replacing, C::refused}, {P::over, A::end}},
    {{P::replacing, C::worker_ready}, {P::granted, A::nothing}},
    {{P::replacing, C::client_arrived}, {P::arrived, A::keep_client}},
    {{P::replacing, C::client_left}, {P::over, A::withdraw}},
    {{P::replacing, C::stopped}, {P::replacing, A::remember}},
    {{P::replacing, C::overdue}, {P::over, A::withdraw}},

    {{P::arrived, C::refused}, {P::over, A::end}},
    {{P::arrived, C::worker_ready}, {P::begins, A::give}},
    {{P::arrived, C::client_left}, {P::over, A::withdraw}},
    {{P::arrived, C::stopped}, {P::arrived, A::remember}},
    {{P::arrived, C::overdue}, {P::over, A::withdraw}},

    {{P::begins, C::refused}, {P::over, A::end}},
    {{P::begins, C::worker_over}, {P::over, A::end}},
    {{P::begins, C::begun}, {P::running, A::begin}},
    {{P::begins, C::stopped}, {P::ending, A::tell_stop}},
    {{P::begins, C::overdue}, {P::ending, A::tell_stop}},

    {{P::running, C::refused}, {P::over, A::end}},
    {{P::running, C::worker_over}, {P::over, A::end}},
    {{P::running, C::detached}, {P::detached, A::lose}},
    {{P::running, C::stopped}, {P::ending, A::tell_stop}},

    {{P::detached, C::refused}, {P::over, A::end}},
    {{P::detached, C::worker_over}, {P::over, A::end}},
    {{P::detached, C::detached}, {P::detached, A::lose}},
    {{P::detached, C::attached}, {P::running, A::regain}},
    {{P::detached, C::stopped}, {P::ending, A::tell_stop}},

    {{P::ending, C::refused}, {P::over, A::end}},
    {{P::ending, C::worker_over}, {P::over, A::end}},
    {{P::ending, C::begun}, {P::ending, A::begin}},
};

template <class Visit>
void for_all(Visit&& visit) {
  for (size_t phase = 0; phase < kSessionPhases; ++phase) {
    for (size_t change = 0; change < kSessionChanges; ++change) {
      INFO(name_of(P(phase)), ", ", name_of(C(change)));
      visit(P(phase), C(change));
    }
  }
}

}  // namespace

TEST_CASE("each change leads from each phase where it should, and to what should be done") {
  for_all([](P phase, C change) {
    auto expected = kExpected.find({phase, change});
    CHECK(
        (step_of(phase, change) == (expected == kExpected.end() ? SessionStep{phase, A::nothing} : expected->second)));
  });
}

TEST_CASE("whoever leaves a phase for good is answered, and nothing is done twice about the end") {
  for_all([](P phase, C change) {
    SessionStep step = step_of(phase, change);
    const bool last = step.action == A::withdraw || step.action == A::refuse || step.action == A::end;
    CHECK(last == (phase != P::over && step.next == P::over));
    // Before the word that it is granted a client can be refused; after it, its worker or the end of its connection
    // tells it.
    if (step.action == A::refuse) CHECK((phase == P::queued || phase == P::starting));
    if (step.action == A::end) CHECK((phase != P::queued && phase != P::starting));
  });
}

TEST_CASE("a session can be stopped, and its worker can die, in every phase") {
  for (size_t phase = 0; phase < kSessionPhases; ++phase) {
    INFO(name_of(P(phase)));
    if (P(phase) == P::over || P(phase) == P::ending) continue;
    CHECK(step_of(P(phase), C::stopped).action != A::nothing);
    if (P(phase) == P::queued || P(phase) == P::replacing || P(phase) == P::arrived) continue;  // it has none
    CHECK(step_of(P(phase), C::worker_over).action != A::nothing);
  }
}

TEST_CASE("from every phase there is a way to the end, and every phase is reached from the queue") {
  std::set<P> reached{P::queued};
  for (size_t round = 0; round < kSessionPhases; ++round)
    for_all([&](P phase, C change) {
      if (reached.contains(phase)) reached.insert(step_of(phase, change).next);
    });
  CHECK(reached.size() == kSessionPhases);
  for (P from : std::set<P>(reached)) {
    std::set<P> onwards{from};
    for (size_t round = 0; round < kSessionPhases; ++round)
      for_all([&](P phase, C change) {
        if (onwards.contains(phase)) onwards.insert(step_of(phase, change).next);
      });
    CHECK(onwards.contains(P::over));
  }
}

TEST_CASE("administrators see a session's state, and a stop that waits for the client's arrival as its end") {
  using gpuwire::server::SessionState;
  const std::map<P, SessionState> shown{{P::queued, SessionState::queued},   {P::starting, SessionState::starting},
                                        {P::granted, SessionState::granted}, {P::replacing, SessionState::granted},
                                        {P::arrived, SessionState::granted}, {P::begins, SessionState::granted},
                                        {P::running, SessionState::running}, {P::detached, SessionState::detached},
                                        {P::ending, SessionState::ending},   {P::over, SessionState::ending}};
  for (const auto& [phase, state] : shown) {
    INFO(name_of(phase));
    CHECK(state_of(phase, false) == state);
    if (state == SessionState::granted) CHECK(state_of(phase, true) == SessionState::ending);
  }
}

TEST_CASE("a client may come back as soon as a worker has had it, whether that has said so or not") {
  for (size_t phase = 0; phase < kSessionPhases; ++phase)
    CHECK(resumable(P(phase)) == (P(phase) == P::begins || P(phase) == P::running || P(phase) == P::detached));
}
