// A rule for each change, by the session's resources in a phase.
#include "server/broker/session/session_state.hpp"

#include <map>
#include <optional>
#include <set>
#include <string>
#include <vector>

#include <doctest/doctest.h>

using namespace gpuwire::server;
using P = SessionPhase;
using C = SessionChange;
using A = SessionAction;

namespace {

// The client has not been told its grant yet.
const std::set<P> kUntold{P::queued, P::starting};
// It has been told, and its connection has not arrived, or waits for a worker.
const std::set<P> kTold{P::granted, P::replacing, P::arrived};
// A worker has the client.
const std::set<P> kWithWorker{P::begins, P::running, P::detached};

std::set<P> together(std::set<P> all, const std::set<P>& more) {
  all.insert(more.begin(), more.end());
  return all;
}

template <class Visit>
void for_all(Visit&& visit) {
  for (size_t phase = 0; phase < kSessionPhases; ++phase) {
    for (size_t change = 0; change < kSessionChanges; ++change) {
      INFO(name_of(P(phase)), ", ", name_of(C(change)));
      visit(P(phase), C(change));
    }
  }
}

// In the phases `in` a change leads to the phase `next` (nothing: it stays), with this action.
struct Rule {
  std::set<P> in;
  std::optional<P> next;
  A action;
};

// Checks the rules of a change; in all other phases the change has no effect.
void check(C change, const std::vector<Rule>& rules) {
  for (size_t index = 0; index < kSessionPhases; ++index) {
    const P phase = P(index);
    SessionStep expected{phase, A::nothing};
    for (const Rule& rule : rules)
      if (rule.in.contains(phase)) expected = {rule.next.value_or(phase), rule.action};
    INFO(name_of(phase), ", ", name_of(change));
    CHECK((step_of(phase, change) == expected));
  }
}

}  // namespace

TEST_CASE("a session comes from the queue to its worker, whichever of the worker and the client is there first") {
  check(C::placed, {{{P::queued}, P::starting, A::start}});
  check(C::worker_ready, {{{P::starting}, P::granted, A::grant},
                          {{P::replacing}, P::granted, A::nothing},
                          {{P::arrived}, P::begins, A::give}});
  check(C::client_arrived, {{{P::granted}, P::begins, A::give}, {{P::replacing}, P::arrived, A::keep_client}});
  // One that was told to end before it had begun is counted all the same.
  check(C::begun, {{{P::begins}, P::running, A::begin}, {{P::ending}, P::ending, A::begin}});
}

TEST_CASE("a session that runs may lose its connection, hear that once more, and have another one") {
  check(C::detached, {{{P::running, P::detached}, P::detached, A::lose}});
  check(C::attached, {{{P::detached}, P::running, A::regain}});
}

TEST_CASE("a session that is refused is over in every phase, and its client is told by whoever it hears") {
  check(C::refused,
        {{kUntold, P::over, A::refuse}, {together(together(kTold, kWithWorker), {P::ending}), P::over, A::end}});
}

TEST_CASE("a client that leaves before a worker has it takes its session with it") {
  check(C::client_left, {{together(kUntold, kTold), P::over, A::withdraw}});
}

TEST_CASE("a worker that dies is replaced until it has the client, and ends the session afterwards") {
  check(C::worker_over, {{{P::starting}, P::starting, A::want_worker},
                         {{P::granted}, P::replacing, A::want_worker},
                         {together(kWithWorker, {P::ending}), P::over, A::end}});
}

TEST_CASE("a session that is stopped ends when its client can be told") {
  check(C::stopped,
        {{kUntold, P::over, A::refuse}, {kTold, {}, A::remember}, {kWithWorker, P::ending, A::notify_stop}});
}

TEST_CASE("a client that does not begin in time is withdrawn, and one that a worker has is told") {
  check(C::overdue, {{together(kTold, {P::queued}), P::over, A::withdraw}, {{P::begins}, P::ending, A::notify_stop}});
}

TEST_CASE("a session that leaves a phase for good is answered, and nothing is done twice about the end") {
  for_all([](P phase, C change) {
    SessionStep step = step_of(phase, change);
    const bool last = step.action == A::withdraw || step.action == A::refuse || step.action == A::end;
    CHECK(last == (phase != P::over && step.next == P::over));
    // Before the grant a client can be refused; after it, its worker or the end of its connection tells it.
    if (step.action == A::refuse) CHECK((phase == P::queued || phase == P::starting));
    if (step.action == A::end) CHECK((phase != P::queued && phase != P::starting));
  });
}

TEST_CASE("a session can be stopped, and its worker can die, in every phase") {
  for (size_t phase = 0; phase < kSessionPhases; ++phase) {
    INFO(name_of(P(phase)));
    if (P(phase) == P::over || P(phase) == P::ending) continue;
    CHECK(step_of(P(phase), C::stopped).action != A::nothing);
    if (P(phase) == P::queued || P(phase) == P::replacing || P(phase) == P::arrived) continue;  // it has no worker
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
