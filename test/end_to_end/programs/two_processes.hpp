// For programs of two processes, each with CUDA of its own, which report their progress to each other by a socket.
#pragma once

#include <sys/socket.h>
#include <sys/wait.h>
#include <unistd.h>

#include "driver_check.hpp"

inline void say(int socket) { DEMAND(write(socket, "s", 1) == 1); }
inline void hear(int socket) {
  char byte;
  DEMAND(read(socket, &byte, 1) == 1);
}

// Runs `child` in a process of its own and `parent` in this one, each with its end of a socket. Precondition: CUDA has
// not been used. Returns the exit code of a program that was right.
inline int in_two_processes(int (*child)(int), void (*parent)(int)) {
  int pair[2];
  DEMAND(socketpair(AF_UNIX, SOCK_STREAM, 0, pair) == 0);
  const pid_t started = fork();
  if (started == 0) {
    close(pair[0]);
    _exit(child(pair[1]));
  }
  close(pair[1]);
  parent(pair[0]);
  int status = -1;
  DEMAND(waitpid(started, &status, 0) == started && status == 0);
  std::printf("PASSED\n");
  return 0;
}
