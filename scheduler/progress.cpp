// Sessions that keep others waiting: work that does not end, and turns that nobody comes for.
#include <algorithm>

#include "scheduler/policy_state.hpp"

namespace gpuwire::scheduler {
namespace {

// For work that was overdue the last time: a slice of the hardware, in which whatever is about to end does.
constexpr Duration kDrainWaitMin = std::chrono::milliseconds(2);
// Who does not come to its turn is passed over for so long, twice as long each time.
constexpr Duration kIgnoredMin = std::chrono::milliseconds(5), kIgnoredMax = std::chrono::milliseconds(100);
constexpr unsigned kNoShowsMax = 5;

}  // namespace

// In flight, and nothing of it ends: a host function that waits for the client, pages that travel, an executor
// that is kept in a driver call, a kernel without an end. From then on whoever is below it runs beside it.
bool Policy::State::stalled(const Session& session) const {
  return session.seen.in_flight && now - session.progress_at >= settings.drain_wait_max;
}

void Policy::State::watch_progress() {
  for (auto& [id, session] : sessions) {
    const bool in_flight = session->seen.in_flight;
    const bool late = session->gate.open
                          ? stalled(*session)
                          : in_flight && !session->drained && now - session->closed_at >= session->drain_wait;
    if (late && !session->overdue) {
      session->overdue = true;
      session->drain_wait = std::min(kDrainWaitMin, settings.drain_wait_max);
    }
    if (in_flight) continue;
    if (!session->gate.open && !session->drained && !session->overdue)
      session->drain_wait = std::min(2 * session->drain_wait, settings.drain_wait_max);
    session->overdue = false;
    session->drained = session->drained || !session->gate.open;
  }
}

// It may only be late: it stands at its gate and is let in when its time has come again.
void Policy::State::note_no_show(Session& session) {
  if (now < session.ignored_until) return;
  if (session.seen.submissions != session.ignored_submissions) session.no_shows = 0;
  session.ignored_submissions = session.seen.submissions;
  session.ignored_until = now + std::min(kIgnoredMin * (1 << std::min(session.no_shows, kNoShowsMax)), kIgnoredMax);
  ++session.no_shows;
}

}  // namespace gpuwire::scheduler
