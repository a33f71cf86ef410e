// The functions of the program that a sequence hands to the driver. `host`, `stream` and `destroy` count how often they
// ran; `write` and `read` do a task (tasks.hpp).
#pragma once

#include <cstdint>
#include <string_view>

namespace differential {

// host, write, read: a CUhostFn; stream: a CUstreamCallback; destroy: the destructor of a user object; log: a
// CUlogsCallback. Throws for another name.
uint64_t callback_address(std::string_view name);
// How often each ran, and the last status that a CUstreamCallback was told.
struct CallbackCounts {
  unsigned host = 0, stream = 0, destroyed = 0;
  int status = 0;
};
CallbackCounts callback_counts();
void reset_callback_counts();

}  // namespace differential
