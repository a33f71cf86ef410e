// A connect(2) that signals do not interrupt.
#pragma once

#include <sys/socket.h>

#include <cerrno>

namespace gpuwire::transport {

// Connects a blocking socket like connect(2). Returns 0, or -1 with errno, which is never EINTR. A signal handler of
// the program, or a SIGCHLD, interrupts a connect() that waits for the peer. On Linux, a second call continues the same
// connection, over TCP and over Unix sockets.
inline int connect_through_signals(int socket, const sockaddr* address, socklen_t bytes) noexcept {
  for (;;) {
    const int result = ::connect(socket, address, bytes);
    if (result == 0 || errno != EINTR) return result;
  }
}

}  // namespace gpuwire::transport
