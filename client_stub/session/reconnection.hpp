// How a session that has lost its connection gets another one, and what the user is told meanwhile.
#pragma once

#include <cuda.h>

#include <chrono>
#include <cstdint>
#include <functional>
#include <memory>
#include <random>
#include <string>

#include <tl/expected.hpp>

#include "protocol/resume/proof.hpp"
#include "protocol/transport/transport.hpp"

namespace gpuwire::client {

// A connection that the session's worker has taken, and how much of our stream it has received.
struct Reconnected {
  std::unique_ptr<transport::Transport> transport;
  uint64_t server_received = 0;
};

struct ReconnectFailure {
  bool again = false;  // another attempt may succeed
  CUresult result = CUDA_ERROR_DEVICE_UNAVAILABLE;
  std::string cause;  // one line
};

class Reconnector {
 public:
  virtual ~Reconnector() = default;
  // One attempt, at most some seconds; `received` is how much of the server's stream has come. One thread at a time.
  virtual tl::expected<Reconnected, ReconnectFailure> reconnect(uint64_t received) noexcept = 0;
  // A further connection, for bulk, beside the one that reconnect() has last given, or the session's first. Also while
  // another thread reconnects.
  virtual tl::expected<std::unique_ptr<transport::Transport>, ReconnectFailure> open_lane(
      const resume::Lane&) noexcept {
    return tl::unexpected<ReconnectFailure>({.cause = "there is no way to another connection"});
  }
};

// The attempts after one loss: 50 ms between the first two, twice as much each time up to 2 s, each with some jitter so
// that the clients of a server that comes back do not come at once; and the lines that the user gets. One thread at a
// time.
class Reconnection {
 public:
  using Clock = std::chrono::steady_clock;
  static constexpr std::chrono::milliseconds kDelayMin{50}, kDelayMax{2000}, kTellAfter{2000};

  // `grace`: how long the server keeps a session without a connection. `tell`: prints one line.
  Reconnection(std::chrono::milliseconds grace, std::function<void(const std::string& line)> tell);

  // The delay before the next attempt. Below 0: the grace period is over.
  std::chrono::milliseconds next_delay(Clock::time_point now, const std::string& cause);
  // Over, with a connection; the time that it took.
  std::chrono::nanoseconds succeeded(Clock::time_point now);

 private:
  const Clock::time_point lost_ = Clock::now();
  const std::chrono::milliseconds grace_;
  const std::function<void(const std::string& line)> tell_;
  std::chrono::milliseconds delay_ = kDelayMin;
  std::minstd_rand random_;
  bool told_ = false;
};

}  // namespace gpuwire::client
