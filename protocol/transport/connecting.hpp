// connect(2) that a signal does not end.
#pragma once

#include <sys/socket.h>

#include <cerrno>

namespace gpuwire::transport {

// As connect(2) for a blocking socket; 0 or -1 with errno, which is never EINTR. A signal handler of the program, or a
// SIGCHLD, interrupts a connect() that waits for the peer; Linux goes on with the same connection when it is called
// again, over TCP as over Unix sockets.
inline int connect_through_signals(int socket, const sockaddr* address, socklen_t bytes) noexcept {
  for (;;) {
    const int result = ::connect(socket, address, bytes);
    if (result == 0 || errno != EINTR) return result;
  }
}

}  // namespace gpuwire::transport
