#include "client_stub/driver/state/session/session_part.hpp"

namespace gpuwire::client {

SessionPart::SessionPart(SessionParts& all) noexcept {
  *all.end_ = this;
  all.end_ = &next_;
}

void SessionParts::notify_ended(SessionEnd how) noexcept {
  for (SessionPart* part = first_; part; part = part->next_) part->ended(how);
}

void SessionParts::notify_forked() noexcept {
  for (SessionPart* part = first_; part; part = part->next_) part->after_fork_in_child();
}

}  // namespace gpuwire::client
