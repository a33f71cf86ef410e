// The service manager that started this process, if there is one that wants notifications: systemd with Type=notify, or
// one with the same protocol.
#pragma once

#include <chrono>
#include <string>

#include <boost/asio/io_context.hpp>
#include <boost/asio/signal_set.hpp>
#include <boost/asio/steady_timer.hpp>

#include "server/base/lifetime.hpp"

namespace gpuwire::server {

// Sends datagrams to the socket that NOTIFY_SOCKET names: when the server accepts programs, when it ends (at SIGTERM,
// at the latest in the destructor), and, if the manager has a watchdog (WATCHDOG_USEC), while the io thread runs. Does
// nothing without NOTIFY_SOCKET. Protocol: sd_notify(3).
class ServiceManager {
 public:
  // Removes the variables from the environment, because processes that the server starts are not the service.
  explicit ServiceManager(boost::asio::io_context& io);
  ~ServiceManager() { stopping(); }
  ServiceManager(const ServiceManager&) = delete;
  ServiceManager& operator=(const ServiceManager&) = delete;

  // `status`: a line for `systemctl status`.
  void ready(const std::string& status);

 private:
  void stopping();
  void notify(const std::string& state) const;
  void feed_watchdog();

  // Empty: nobody listens.
  std::string socket_;
  // Between two watchdog notifications; 0: the manager wants none.
  std::chrono::microseconds interval_{};
  bool stopping_ = false;
  boost::asio::steady_timer watchdog_;
  boost::asio::signal_set signals_;
  Lifetime lifetime_;
};

}  // namespace gpuwire::server
