// The functions of the program that a sequence passes to the driver. `host`, `stream` and `destroy` count their calls;
// `write` and `read` run a task (tasks.hpp).
#pragma once

#include <cstdint>
#include <string_view>

namespace differential {

// host, write, read: a CUhostFn; stream: a CUstreamCallback; destroy: the destructor of a user object; log: a
// CUlogsCallback. Throws for another name.
uint64_t callback_address(std::string_view name);
// The number of calls of each, and the last status that a CUstreamCallback got.
struct CallbackCounts {
  unsigned host = 0, stream = 0, destroyed = 0;
  int status = 0;
};
CallbackCounts callback_counts();
void reset_callback_counts();

}  // namespace differential
