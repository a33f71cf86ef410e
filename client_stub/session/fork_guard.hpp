// Makes the sessions of this process unusable in a child after fork(): a CUDA context does not survive it, and a child
// that wrote to the connection would ruin the parent's.
#pragma once

namespace gpuwire::client {

class Session;

// Sessions a process can have at once; more are not guarded.
inline constexpr int kGuardedSessionsMax = 64;

void guard_against_fork(Session& session) noexcept;
void forget_fork_guard(Session& session) noexcept;

}  // namespace gpuwire::client
