#include "server/broker/suspension/suspension_state.hpp"

namespace gpuwire::server {
namespace {

using P = SuspensionPhase;
using A = SuspensionAction;
using Row = std::array<SuspensionStep, kSuspensionChanges>;

// A row for each phase, a column for each change, in the order of their enumerators. A worker that rests in a phase
// where it need not (its answer came late, or an earlier broker asked) is let go on.
// clang-format off
constexpr std::array<Row, kSuspensionPhases> kTable{{
    //  suspend, quiet, not_quiet, unanswered,
    //  wanted                         room                           moved                          refused
    //  no_room                        failed
    // running
    {{{P::quiescing, A::ask}, {P::running, A::go_on},
      {P::running, A::nothing}, {P::running, A::nothing},
      {P::running, A::nothing}, {P::running, A::nothing},
      {P::running, A::nothing}, {P::running, A::nothing},
      {P::running, A::nothing},        {P::running, A::nothing}}},
    // quiescing
    {{{P::quiescing, A::nothing}, {P::moving_out, A::order_out},
      {P::running, A::refuse}, {P::running, A::stay},
      {P::quiescing, A::nothing}, {P::quiescing, A::nothing},
      {P::quiescing, A::nothing}, {P::quiescing, A::nothing},
      {P::quiescing, A::nothing},      {P::quiescing, A::nothing}}},
    // moving_out
    {{{P::moving_out, A::nothing}, {P::moving_out, A::nothing},
      {P::moving_out, A::nothing}, {P::moving_out, A::nothing},
      {P::recalled, A::nothing}, {P::moving_out, A::nothing},
      {P::suspended, A::release}, {P::running, A::stay},
      {P::lost, A::end},               {P::lost, A::end}}},
    // recalled
    {{{P::recalled, A::refuse}, {P::recalled, A::nothing},
      {P::recalled, A::nothing}, {P::recalled, A::nothing},
      {P::recalled, A::nothing}, {P::recalled, A::nothing},
      {P::moving_in, A::order_in}, {P::running, A::stay},
      {P::lost, A::end},               {P::lost, A::end}}},
    // suspended
    {{{P::suspended, A::nothing}, {P::suspended, A::nothing},
      {P::suspended, A::nothing}, {P::suspended, A::nothing},
      {P::awaiting_memory, A::await}, {P::suspended, A::nothing},
      {P::suspended, A::nothing}, {P::suspended, A::nothing},
      {P::suspended, A::nothing},      {P::suspended, A::nothing}}},
    // awaiting_memory
    {{{P::awaiting_memory, A::refuse}, {P::awaiting_memory, A::nothing},
      {P::awaiting_memory, A::nothing}, {P::awaiting_memory, A::nothing},
      {P::awaiting_memory, A::nothing}, {P::moving_in, A::order_in},
      {P::awaiting_memory, A::nothing}, {P::awaiting_memory, A::nothing},
      {P::awaiting_memory, A::nothing}, {P::awaiting_memory, A::nothing}}},
    // moving_in
    {{{P::moving_in, A::refuse}, {P::moving_in, A::nothing},
      {P::moving_in, A::nothing}, {P::moving_in, A::nothing},
      {P::moving_in, A::nothing}, {P::moving_in, A::nothing},
      {P::running, A::finish}, {P::awaiting_memory, A::try_later},
      {P::awaiting_memory, A::try_later}, {P::lost, A::end}}},
    // lost
    {{{P::lost, A::refuse}, {P::lost, A::nothing},
      {P::lost, A::nothing}, {P::lost, A::nothing},
      {P::lost, A::nothing}, {P::lost, A::nothing},
      {P::lost, A::nothing}, {P::lost, A::nothing},
      {P::lost, A::nothing},           {P::lost, A::nothing}}},
}};
// clang-format on

constexpr std::array<const char*, kSuspensionPhases> kPhaseNames{
    "running", "quiescing", "moving_out", "recalled", "suspended", "awaiting_memory", "moving_in", "lost"};
constexpr std::array<const char*, kSuspensionChanges> kChangeNames{
    "suspend", "quiet", "not_quiet", "unanswered", "wanted", "room", "moved", "refused", "no_room", "failed"};

}  // namespace

SuspensionStep step_of(SuspensionPhase phase, SuspensionChange change) { return kTable[size_t(phase)][size_t(change)]; }

SuspensionState state_of(SuspensionPhase phase) {
  switch (phase) {
    case P::running: break;
    case P::quiescing:
    case P::moving_out:
    case P::recalled: return SuspensionState::suspending;
    case P::suspended: return SuspensionState::suspended;
    case P::awaiting_memory:
    case P::moving_in:
    case P::lost: return SuspensionState::resuming;  // never back
  }
  return SuspensionState::none;
}

const char* name_of(SuspensionPhase phase) { return kPhaseNames[size_t(phase)]; }
const char* name_of(SuspensionChange change) { return kChangeNames[size_t(change)]; }

}  // namespace gpuwire::server
