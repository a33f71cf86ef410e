// Makes the sessions of this process unusable in a child after fork(): a CUDA context does not survive fork(), and a
// child that wrote to the connection would corrupt the parent's stream.
#pragma once

namespace gpuwire::client {

class Session;

// The number of guarded sessions of a process; further ones are unguarded.
inline constexpr int kGuardedSessionsMax = 64;

void guard_against_fork(Session& session) noexcept;
void forget_fork_guard(Session& session) noexcept;

}  // namespace gpuwire::client
