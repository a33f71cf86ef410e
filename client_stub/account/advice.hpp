// Explains why a program was slower than possible, from the counts of its run: `gpuwire run --stats=why`. Pure logic.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

namespace gpuwire::client {

// The waits of one driver function, over all its calls.
struct WaitedCall {
  std::string_view name;
  // Round trips.
  uint64_t waits = 0;
  // Times that the connection was full; their time is in wait_ns.
  uint64_t stalls = 0;
  // The waits of copies with a side in pageable memory, which `waits` includes.
  uint64_t pageable_waits = 0;
  uint64_t wait_ns = 0;
  // The time within the calls, including their waits.
  uint64_t ns = 0;
  // Both ways.
  uint64_t bytes = 0;
};

// The server's answer to session_account (protocol/api/session.toml). Without `gpu_counted`, gpu_ns is the time for
// which calls waited for the device.
struct ServerTimes {
  uint64_t age_ns = 0, input_ns = 0, device_ns = 0, held_ns = 0, gpu_ns = 0;
  uint64_t held = 0;
  bool gpu_counted = false;
};

struct RunFigures {
  std::string_view program;
  long process_id = 0;
  uint64_t elapsed_ns = 0;
  // The sums over all threads.
  uint64_t waits = 0, wait_ns = 0;
  // Bytes.
  uint64_t sent = 0, received = 0;
  // The connection's round trip; 0: not known.
  uint64_t round_trip_ns = 0;
  std::optional<ServerTimes> server;
  std::vector<WaitedCall> calls;
};

// The causes of the waiting; the parts add up to wait_ns. Each part but `network` is the server's figure, as an upper
// bound, because it includes work that went on while the program did not wait. Round trips come first, then other
// tenants' turns, the GPU, the server's own work; the remainder was in transit.
struct WaitParts {
  uint64_t network = 0, held = 0, gpu = 0, server = 0;
};
WaitParts divide_waiting(const RunFigures& figures) noexcept;

// Returns five lines: the time of waiting; its causes; the waiting calls; and the two changes that would save the most,
// or a line that there is none.
std::vector<std::string> explain_run(const RunFigures& figures);

}  // namespace gpuwire::client
