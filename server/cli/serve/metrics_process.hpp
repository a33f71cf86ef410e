// The gpuwire-metrics process beside a server.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include <boost/asio/io_context.hpp>
#include <boost/asio/posix/stream_descriptor.hpp>
#include <boost/asio/steady_timer.hpp>
#include <sys/types.h>
#include <tl/expected.hpp>

#include "server/base/lifetime.hpp"

namespace gpuwire::server {

inline constexpr uint32_t kMetricsRestartMinMs = 500, kMetricsRestartMaxMs = 60'000;  // doubles with each end
inline constexpr uint32_t kMetricsAddressWaitMs = 3000, kMetricsAddressStepMs = 50;

// The object starts the process again when it ends, with growing delays, and ends it in the destructor. Used on the
// thread that runs the io_context. The object outlives the io_context's run.
class MetricsProcess {
 public:
  // `arguments`: without the program's name.
  MetricsProcess(boost::asio::io_context& io, std::string program, std::vector<std::string> arguments);
  ~MetricsProcess();
  // Checks the address at the server's start, so that an address in use is an error of the start and not of a process
  // that is started again and again. Waits briefly for an address that its owner is about to release. `text`:
  // metrics_listen.
  static tl::expected<void, std::string> await_address(const std::string& text);
  MetricsProcess(const MetricsProcess&) = delete;
  MetricsProcess& operator=(const MetricsProcess&) = delete;

 private:
  void start();
  void ended();
  void again(const std::string& why);

  const std::string program_;
  const std::vector<std::string> arguments_;
  // A pidfd.
  boost::asio::posix::stream_descriptor process_;
  boost::asio::steady_timer again_timer_;
  pid_t pid_ = -1;
  uint32_t delay_ms_ = kMetricsRestartMinMs;
  Lifetime lifetime_;
};

}  // namespace gpuwire::server
