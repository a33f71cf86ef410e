// A real user of a worker's own.
//
// The kernel counts for a process's *real* user: signals that wait, timers, descriptors that are on their way, watches
// of epoll, memory of pipes, processes. It asks for the real user, too, before a process may read another's memory or
// change its limits. Files go by the *effective* user, and so do the objects of NVIDIA's driver that processes share.
// A worker whose real user alone is its own is therefore counted and protected as a user of its own, and its files and
// its tenant's shared memory are within reach as before.
#pragma once

#include <string>

#include <sys/types.h>
#include <tl/expected.hpp>

namespace gpuwire::server {

// Whether processes that this one starts may get real users of their own: the process has CAP_SETUID.
bool may_give_users();

// For a broker with may_give_users(), before it starts anything: from here on this process and its children become no
// other user, except that a real user may be exchanged, never for root. Only PassOnUserRight passes the right itself
// on. Nothing is changed for root, who needs no right.
tl::expected<void, std::string> give_real_users_only();

// While it lives, a program that this thread starts has the right to exchange its real user.
class PassOnUserRight {
 public:
  PassOnUserRight();
  ~PassOnUserRight();
  PassOnUserRight(const PassOnUserRight&) = delete;
  PassOnUserRight& operator=(const PassOnUserRight&) = delete;
};

// The process's real user from now on. Before it has other threads.
tl::expected<void, std::string> take_real_user(uid_t user);

}  // namespace gpuwire::server
