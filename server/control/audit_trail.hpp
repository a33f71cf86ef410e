// The lines of the audit log for events of sessions and of administrators.
#pragma once

#include "server/broker/session/session_registry.hpp"
#include "server/control/client/metrics.hpp"
#include "server/log/audit_log.hpp"

namespace gpuwire::server {

// Returns how a session ended, in one word that is the same in all releases.
std::string end_word(const SessionEvent& event);

// Writes one line for the event. `last`: the session's metrics when it ended.
void audit(AuditLog& log, const SessionEvent& event, const SessionMetrics& last);

}  // namespace gpuwire::server
