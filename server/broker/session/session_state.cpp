#include "server/broker/session/session_state.hpp"

namespace gpuwire::server {
namespace {

using P = SessionPhase;
using A = SessionAction;
using Row = std::array<SessionStep, kSessionChanges>;

// A row for each phase, a column for each change, in the order of their enumerators. Every path to `over` answers the
// client, or follows the client's end.
// clang-format off
constexpr std::array<Row, kSessionPhases> kTable{{
    //  placed                     refused                    worker_ready               worker_over
    //  client_arrived             client_left                begun                      detached
    //  attached                   stopped                    overdue
    // queued
    {{{P::starting, A::start},   {P::over, A::refuse},      {P::queued, A::nothing},   {P::queued, A::nothing},
      {P::queued, A::nothing},   {P::over, A::withdraw},    {P::queued, A::nothing},   {P::queued, A::nothing},
      {P::queued, A::nothing},   {P::over, A::refuse},      {P::over, A::withdraw}}},
    // starting
    {{{P::starting, A::nothing}, {P::over, A::refuse},      {P::granted, A::grant},    {P::starting, A::want_worker},
      {P::starting, A::nothing}, {P::over, A::withdraw},    {P::starting, A::nothing}, {P::starting, A::nothing},
      {P::starting, A::nothing}, {P::over, A::refuse},      {P::starting, A::nothing}}},
    // granted
    {{{P::granted, A::nothing},  {P::over, A::end},         {P::granted, A::nothing},  {P::replacing, A::want_worker},
      {P::begins, A::give},      {P::over, A::withdraw},    {P::granted, A::nothing},  {P::granted, A::nothing},
      {P::granted, A::nothing},  {P::granted, A::remember}, {P::over, A::withdraw}}},
    // replacing
    {{{P::replacing, A::nothing}, {P::over, A::end},         {P::granted, A::nothing},  {P::replacing, A::nothing},
      {P::arrived, A::keep_client}, {P::over, A::withdraw},    {P::replacing, A::nothing}, {P::replacing, A::nothing},
      {P::replacing, A::nothing}, {P::replacing, A::remember}, {P::over, A::withdraw}}},
    // arrived
    {{{P::arrived, A::nothing},  {P::over, A::end},         {P::begins, A::give},      {P::arrived, A::nothing},
      {P::arrived, A::nothing},  {P::over, A::withdraw},    {P::arrived, A::nothing},  {P::arrived, A::nothing},
      {P::arrived, A::nothing},  {P::arrived, A::remember}, {P::over, A::withdraw}}},
    // begins
    {{{P::begins, A::nothing},   {P::over, A::end},         {P::begins, A::nothing},   {P::over, A::end},
      {P::begins, A::nothing},   {P::begins, A::nothing},   {P::running, A::begin},    {P::begins, A::nothing},
      {P::begins, A::nothing},   {P::ending, A::notify_stop}, {P::ending, A::notify_stop}}},
    // running
    {{{P::running, A::nothing},  {P::over, A::end},         {P::running, A::nothing},  {P::over, A::end},
      {P::running, A::nothing},  {P::running, A::nothing},  {P::running, A::nothing},  {P::detached, A::lose},
      {P::running, A::nothing},  {P::ending, A::notify_stop}, {P::running, A::nothing}}},
    // detached
    {{{P::detached, A::nothing}, {P::over, A::end},         {P::detached, A::nothing}, {P::over, A::end},
      {P::detached, A::nothing}, {P::detached, A::nothing}, {P::detached, A::nothing}, {P::detached, A::lose},
      {P::running, A::regain},   {P::ending, A::notify_stop}, {P::detached, A::nothing}}},
    // ending
    {{{P::ending, A::nothing},   {P::over, A::end},         {P::ending, A::nothing},   {P::over, A::end},
      {P::ending, A::nothing},   {P::ending, A::nothing},   {P::ending, A::begin},     {P::ending, A::nothing},
      {P::ending, A::nothing},   {P::ending, A::nothing},   {P::ending, A::nothing}}},
    // over
    {{{P::over, A::nothing},     {P::over, A::nothing},     {P::over, A::nothing},     {P::over, A::nothing},
      {P::over, A::nothing},     {P::over, A::nothing},     {P::over, A::nothing},     {P::over, A::nothing},
      {P::over, A::nothing},     {P::over, A::nothing},     {P::over, A::nothing}}},
}};
// clang-format on

constexpr std::array<const char*, kSessionPhases> kPhaseNames{"queued", "starting", "granted",  "replacing", "arrived",
                                                              "begins", "running",  "detached", "ending",    "over"};
constexpr std::array<const char*, kSessionChanges> kChangeNames{
    "placed", "refused",  "worker_ready", "worker_over", "client_arrived", "client_left",
    "begun",  "detached", "attached",     "stopped",     "overdue"};

}  // namespace

SessionStep step_of(SessionPhase phase, SessionChange change) { return kTable[size_t(phase)][size_t(change)]; }

SessionState state_of(SessionPhase phase, bool stopped) {
  switch (phase) {
    case P::queued: return SessionState::queued;
    case P::starting: return SessionState::starting;
    case P::granted:
    case P::replacing:
    case P::arrived:
    case P::begins: return stopped ? SessionState::ending : SessionState::granted;
    case P::running: return SessionState::running;
    case P::detached: return SessionState::detached;
    case P::ending:
    case P::over: break;
  }
  return SessionState::ending;
}

bool resumable(SessionPhase phase) { return phase == P::begins || phase == P::running || phase == P::detached; }

const char* name_of(SessionPhase phase) { return kPhaseNames[size_t(phase)]; }
const char* name_of(SessionChange change) { return kChangeNames[size_t(change)]; }

}  // namespace gpuwire::server
