// The lines of the audit log: what each event of a session and of an administrator says.
#pragma once

#include "server/broker/session_book.hpp"
#include "server/control/figures.hpp"
#include "server/log/audit_log.hpp"

namespace gpuwire::server {

// Why a session was refused, or how it ended, in one word that stays the same from release to release.
std::string refusal_word(const SessionEvent& event);
std::string end_word(const SessionEvent& event);

// One line for the event. `last`: the session's figures when it ended.
void audit(AuditLog& log, const SessionEvent& event, const SessionFigures& last);

}  // namespace gpuwire::server
