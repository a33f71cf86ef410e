// Gets another connection for a session that has lost its own, and informs the user meanwhile.
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
  // Opens a further connection, for bulk, beside the one that reconnect() has given last, or beside the session's
  // first. May run while another thread reconnects.
  virtual tl::expected<std::unique_ptr<transport::Transport>, ReconnectFailure> open_lane(
      const resume::Lane&) noexcept {
    return tl::unexpected<ReconnectFailure>({.cause = "there is no way to another connection"});
  }
};

// The attempts after a loss, and after those of connections that have brought nothing: 50 ms between the first two,
// twice as much each time up to 2 s, each with some jitter so that the clients of a server that comes back do not come
// at once; and the lines that the user gets. One thread at a time.
class Reconnection {
 public:
  using Clock = std::chrono::steady_clock;
  static constexpr std::chrono::milliseconds kDelayMin{50}, kDelayMax{2000}, kNotifyAfter{2000}, kLasting{10'000};

  struct Graces {
    std::chrono::milliseconds tried{0};  // the client makes attempts for this long
    std::chrono::milliseconds told{0};   // the server keeps a session after a loss of this kind for this long
  };
  // `loss` describes how the connection was lost. `tell` prints one line.
  Reconnection(const Graces& graces, std::string loss, std::function<void(const std::string& line)> notify);

  // The delay before the next attempt. Below 0: the grace period is over.
  std::chrono::milliseconds next_delay(Clock::time_point now, const std::string& cause);
  // A connection was had; the time that it took. May be lost again before it has brought anything: then this goes on.
  std::chrono::nanoseconds succeeded(Clock::time_point now);
  // Did the last connection live long enough to count as a success, whether or not bytes arrived?
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
