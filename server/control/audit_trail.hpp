// The lines of the audit log: what each event of a session and of an administrator says.
#pragma once

#include "server/broker/session/session_registry.hpp"
#include "server/control/client/metrics.hpp"
#include "server/log/audit_log.hpp"

namespace gpuwire::server {

// How a session ended, in one word that stays the same from release to release.
std::string end_word(const SessionEvent& event);

// One line for the event. `last`: the session's figures when it ended.
void audit(AuditLog& log, const SessionEvent& event, const SessionMetrics& last);

}  // namespace gpuwire::server
