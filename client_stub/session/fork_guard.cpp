#include "client_stub/session/fork_guard.hpp"

#include <pthread.h>

#include <atomic>

#include "client_stub/session/session.hpp"

namespace gpuwire::client {

namespace {

// A fixed table, so that the child needs no lock: one of the parent's threads might have held it. The thread that made
// the session publishes its entry with release. The child has one thread, a copy of the forking one, and fork() orders
// everything before it.
std::atomic<Session*> g_guarded[kGuardedSessionsMax];

void in_child() {
  for (auto& guarded : g_guarded)
    if (Session* session = guarded.load(std::memory_order_acquire)) session->after_fork_in_child();
}

bool replace(Session* expected, Session* desired) {
  for (auto& guarded : g_guarded) {
    Session* found = expected;
    if (guarded.compare_exchange_strong(found, desired, std::memory_order_acq_rel)) return true;
  }
  return false;
}

}  // namespace

void guard_against_fork(Session& session) noexcept {
  // Removed by the C library when the library that contains this code is unloaded.
  static const int registered = pthread_atfork(nullptr, nullptr, in_child);
  (void)registered;
  replace(nullptr, &session);
}

void forget_fork_guard(Session& session) noexcept { replace(&session, nullptr); }

}  // namespace gpuwire::client
