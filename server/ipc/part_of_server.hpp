// The programs that only a broker starts: their help texts, and their message for a person who starts one by hand.
#pragma once

#include <cstdio>
#include <optional>
#include <string>

#include <sys/stat.h>

#include "server/ipc/channel.hpp"

namespace gpuwire::server {

inline constexpr int kStartedByHand = 2;  // the exit code, as for all wrong usage
inline constexpr const char* kWhatToUseInstead =
    "use `gpuwire serve` to offer this machine's GPUs, and `gpuwire run` to run a program on a server's";

// For --help. `what`: sentences.
inline std::string part_of_server(const std::string& what) {
  return what + " A part of `gpuwire serve`, which starts it; of no use by itself: " + kWhatToUseInstead + ".";
}

// No value: the broker has started this process, and the channel is open. Otherwise the exit code, after a message was
// printed.
inline std::optional<int> started_by_hand(const char* command) {
  struct stat facts {};
  if (::fstat(ipc::kDescriptor, &facts) == 0 && S_ISSOCK(facts.st_mode)) return std::nullopt;
  std::fprintf(stderr, "gpuwire %s: this is a part of `gpuwire serve`, which starts it; %s\n", command,
               kWhatToUseInstead);
  return kStartedByHand;
}

}  // namespace gpuwire::server
