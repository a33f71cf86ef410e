// For programs that print a driver's answers, one line for each fact, in sections. Each section runs in a process of
// its own, so that a driver's crash in one is printed as a fact, and the others follow.
#pragma once

#include <sys/wait.h>
#include <unistd.h>

#include <functional>
#include <vector>

#include "driver_check.hpp"

struct Section {
  const char* name;
  std::function<void()> tell;
};

inline const char* status_name(CUstreamCaptureStatus status) {
  return status == CU_STREAM_CAPTURE_STATUS_NONE     ? "none"
         : status == CU_STREAM_CAPTURE_STATUS_ACTIVE ? "active"
                                                     : "invalidated";
}

// Returns "none", "active", "invalidated", or the query's error.
inline const char* status_text(CUstream stream) {
  CUstreamCaptureStatus status = CU_STREAM_CAPTURE_STATUS_NONE;
  const CUresult error = cuStreamIsCapturing(stream, &status);
  return error ? error_name(error) : status_name(status);
}

// Runs all sections; a process that hangs is ended by SIGALRM.
inline int tell_facts(const std::vector<Section>& sections) {
  constexpr unsigned kSectionSeconds = 60;
  for (const Section& section : sections) {
    std::printf("--- %s\n", section.name);
    std::fflush(stdout);
    const pid_t child = fork();
    DEMAND(child >= 0);
    if (child == 0) {
      alarm(kSectionSeconds);
      std::setvbuf(stdout, nullptr, _IOLBF, 0);
      section.tell();
      std::exit(0);
    }
    int status = 0;
    DEMAND(waitpid(child, &status, 0) == child);
    if (WIFSIGNALED(status)) std::printf("ended by signal %d\n", WTERMSIG(status));
    if (WIFEXITED(status) && WEXITSTATUS(status)) std::printf("ended with %d\n", WEXITSTATUS(status));
  }
  return 0;
}
