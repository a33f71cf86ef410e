// A rule for each change, in every phase.
#include "server/broker/suspension/suspension_state.hpp"

#include <optional>
#include <set>
#include <vector>

#include <doctest/doctest.h>

using namespace gpuwire::server;

namespace {

using Phase = SuspensionPhase;
using Change = SuspensionChange;
using Action = SuspensionAction;

// In the phases `in` a change leads to the phase `next` (nothing: it stays), with this action.
struct SuspensionRule {
  std::set<Phase> in;
  std::optional<Phase> next;
  Action action;
};

// Checks the rules of a change; in all other phases the change has no effect.
void check_suspension(Change change, const std::vector<SuspensionRule>& rules) {
  for (size_t index = 0; index < kSuspensionPhases; ++index) {
    const Phase phase = Phase(index);
    SuspensionStep expected{phase, Action::nothing};
    for (const SuspensionRule& rule : rules)
      if (rule.in.contains(phase)) expected = {rule.next.value_or(phase), rule.action};
    INFO(name_of(phase), ", ", name_of(change));
    CHECK((step_of(phase, change) == expected));
  }
}

}  // namespace

TEST_CASE("a session is asked to rest, moves out, and releases its memory") {
  check_suspension(Change::suspend,
                   {{{Phase::running}, Phase::quiescing, Action::ask},
                    {{Phase::recalled, Phase::awaiting_memory, Phase::moving_in, Phase::lost}, {}, Action::refuse}});
  check_suspension(Change::moved, {{{Phase::moving_out}, Phase::suspended, Action::release},
                                   {{Phase::recalled}, Phase::moving_in, Action::order_in},
                                   {{Phase::moving_in}, Phase::running, Action::finish}});
}

TEST_CASE("a worker that rests without need goes on, and one that does not rest stays as it is") {
  check_suspension(Change::quiet, {{{Phase::quiescing}, Phase::moving_out, Action::order_out},
                                   {{Phase::running}, Phase::running, Action::go_on}});
  check_suspension(Change::not_quiet, {{{Phase::quiescing}, Phase::running, Action::refuse}});
  check_suspension(Change::unanswered, {{{Phase::quiescing}, Phase::running, Action::stay}});
}

TEST_CASE("a call of the client brings the session back, from the device's memory or on its way there") {
  check_suspension(Change::wanted, {{{Phase::suspended}, Phase::awaiting_memory, Action::await},
                                    {{Phase::moving_out}, Phase::recalled, Action::nothing}});
  check_suspension(Change::room, {{{Phase::awaiting_memory}, Phase::moving_in, Action::order_in}});
}

TEST_CASE("a move that is refused changes nothing, and one that finds no room is tried again") {
  check_suspension(Change::refused, {{{Phase::moving_out, Phase::recalled}, Phase::running, Action::stay},
                                     {{Phase::moving_in}, Phase::awaiting_memory, Action::try_later}});
  check_suspension(Change::no_room, {{{Phase::moving_in}, Phase::awaiting_memory, Action::try_later},
                                     {{Phase::moving_out, Phase::recalled}, Phase::lost, Action::end}});
}

TEST_CASE("a session whose memory the driver has lost ends") {
  check_suspension(Change::failed,
                   {{{Phase::moving_out, Phase::recalled, Phase::moving_in}, Phase::lost, Action::end}});
}

TEST_CASE("every phase is reached from running, and every phase but lost leads back there") {
  auto onwards = [](Phase from) {
    std::set<Phase> reached{from};
    for (size_t round = 0; round < kSuspensionPhases; ++round)
      for (const Phase phase : std::set<Phase>(reached))
        for (size_t change = 0; change < kSuspensionChanges; ++change)
          reached.insert(step_of(phase, Change(change)).next);
    return reached;
  };
  CHECK(onwards(Phase::running).size() == kSuspensionPhases);
  for (size_t phase = 0; phase < kSuspensionPhases; ++phase)
    CHECK(onwards(Phase(phase)).contains(Phase::running) == (Phase(phase) != Phase::lost));
}

TEST_CASE("administrators see whether a session is on its way out, away, or on its way back") {
  CHECK(state_of(Phase::running) == SuspensionState::none);
  for (Phase phase : {Phase::quiescing, Phase::moving_out, Phase::recalled})
    CHECK(state_of(phase) == SuspensionState::suspending);
  CHECK(state_of(Phase::suspended) == SuspensionState::suspended);
  for (Phase phase : {Phase::awaiting_memory, Phase::moving_in, Phase::lost})
    CHECK(state_of(phase) == SuspensionState::resuming);
}
