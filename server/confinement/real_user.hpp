// Gives each worker its own real user.
//
// The kernel counts these resources per *real* user: pending signals, timers, descriptors in transit, epoll watches,
// memory of pipes, processes. It also checks the real user before a process may read another's memory or change its
// limits. Access to files, and to the objects of NVIDIA's driver that processes share, depends on the *effective* user.
// With its own real user, a worker is therefore counted and protected as a separate user, and can still access its
// files and its tenant's shared memory.
#pragma once

#include <string>

#include <sys/types.h>
#include <tl/expected.hpp>

namespace gpuwire::server {

// Returns whether child processes may get their own real users: whether this process has CAP_SETUID.
bool may_give_users();

// For a broker with may_give_users(), before it starts any process: from now on this process and its children cannot
// change users, except for the real user, which cannot become root. Only PassOnUserRight passes the right on. Changes
// nothing for root, who needs no right.
tl::expected<void, std::string> give_real_users_only();

// While the object exists, a program that this thread starts has the right to change its real user.
class PassOnUserRight {
 public:
  PassOnUserRight();
  ~PassOnUserRight();
  PassOnUserRight(const PassOnUserRight&) = delete;
  PassOnUserRight& operator=(const PassOnUserRight&) = delete;
};

// Sets the process's real user. Precondition: the process has one thread.
tl::expected<void, std::string> take_real_user(uid_t user);

}  // namespace gpuwire::server
