// Reconnects a session that has lost its connection, and informs the user meanwhile.
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

// A connection that the session's worker has accepted, and how much of this side's stream it has received.
struct Reconnected {
  std::unique_ptr<transport::Transport> transport;
  uint64_t server_received = 0;
};

struct ReconnectFailure {
  // Another attempt may succeed.
  bool again = false;
  CUresult result = CUDA_ERROR_DEVICE_UNAVAILABLE;
  // One line.
  std::string cause;
};

class Reconnector {
 public:
  virtual ~Reconnector() = default;
  // Makes one attempt, which takes at most some seconds. `received` is the length of the server's stream so far. One
  // thread at a time.
  virtual tl::expected<Reconnected, ReconnectFailure> reconnect(uint64_t received) noexcept = 0;
  // Opens a further connection, for bulk, beside the last one of reconnect(), or beside the session's first. May run
  // while another thread reconnects.
  virtual tl::expected<std::unique_ptr<transport::Transport>, ReconnectFailure> open_lane(
      const resume::Lane&) noexcept {
    return tl::unexpected<ReconnectFailure>({.cause = "there is no way to another connection"});
  }
};

// Schedules the attempts after a loss, including losses of connections that moved no bytes, and prints the user's
// lines. The delay begins at 50 ms and doubles up to 2 s, with jitter, so that the clients of a restarted server do not
// return at once. One thread at a time.
class Reconnection {
 public:
  using Clock = std::chrono::steady_clock;
  static constexpr std::chrono::milliseconds kDelayMin{50}, kDelayMax{2000}, kNotifyAfter{2000}, kLasting{10'000};

  struct Graces {
    // The client makes attempts for this long.
    std::chrono::milliseconds tried{0};
    // The server keeps a session after a loss of this kind for this long.
    std::chrono::milliseconds told{0};
  };
  // `loss` describes how the connection was lost. `notify` prints one line.
  Reconnection(const Graces& graces, std::string loss, std::function<void(const std::string& line)> notify);

  // Returns the delay before the next attempt. Below 0: the grace period is over.
  std::chrono::milliseconds next_delay(Clock::time_point now, const std::string& cause);
  // Records a new connection. Returns the time since the loss or the previous one. If the connection is lost before it
  // moves any bytes, the object continues.
  std::chrono::nanoseconds succeeded(Clock::time_point now);
  // Returns whether the last connection lived long enough to count as a success, even if no bytes arrived.
  bool has_lasted(Clock::time_point now) const noexcept { return now - found_ >= kLasting; }

 private:
  const Clock::time_point lost_ = Clock::now();
  Clock::time_point found_ = lost_;
  const Graces graces_;
  const std::string loss_;
  const std::function<void(const std::string& line)> notify_;
  std::chrono::milliseconds delay_ = kDelayMin;
  std::minstd_rand random_;
  bool notified_ = false, notified_found_ = false;
};

}  // namespace gpuwire::client
