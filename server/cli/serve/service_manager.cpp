#include "server/cli/serve/service_manager.hpp"

#include <algorithm>
#include <charconv>
#include <csignal>
#include <cstddef>
#include <cstdlib>
#include <cstring>
#include <string_view>
#include <utility>

#include <sys/socket.h>
#include <sys/un.h>
#include <unistd.h>

#include "server/base/owned_descriptor.hpp"

namespace gpuwire::server {
namespace {

std::string take_variable(const char* name) {
  const char* value = std::getenv(name);
  std::string taken = value ? value : "";
  ::unsetenv(name);
  return taken;
}

uint64_t number_in(std::string_view text) {
  uint64_t number = 0;
  auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), number);
  return error == std::errc() && end == text.data() + text.size() ? number : 0;
}

}  // namespace

ServiceManager::ServiceManager(boost::asio::io_context& io)
    : socket_(take_variable("NOTIFY_SOCKET")), watchdog_(io), signals_(io) {
  uint64_t watchdog_us = number_in(take_variable("WATCHDOG_USEC")), meant = number_in(take_variable("WATCHDOG_PID"));
  if (socket_.empty()) return;
  // Notifies twice as often as necessary, so that one delay does not trigger the watchdog.
  if (meant == 0 || meant == uint64_t(::getpid())) interval_ = std::chrono::microseconds(watchdog_us / 2);
  signals_.add(SIGTERM);
  signals_.async_wait(lifetime_.guard([this](boost::system::error_code error, int) {
    if (!error) stopping();
  }));
}

void ServiceManager::stopping() {
  if (!std::exchange(stopping_, true)) notify("STOPPING=1\nSTATUS=Running sessions have time to end");
}

void ServiceManager::ready(const std::string& status) {
  notify("READY=1\nSTATUS=" + status);
  feed_watchdog();
}

void ServiceManager::feed_watchdog() {
  if (socket_.empty() || interval_.count() == 0) return;
  notify("WATCHDOG=1");
  watchdog_.expires_after(interval_);
  watchdog_.async_wait(lifetime_.guard([this](boost::system::error_code error) {
    if (!error) feed_watchdog();
  }));
}

void ServiceManager::notify(const std::string& state) const {
  sockaddr_un address{.sun_family = AF_UNIX, .sun_path = {}};
  if (socket_.empty() || socket_.size() >= sizeof address.sun_path) return;
  std::copy(socket_.begin(), socket_.end(), address.sun_path);
  if (socket_.front() == '@') address.sun_path[0] = '\0';  // a name that is not a file
  OwnedDescriptor out(::socket(AF_UNIX, SOCK_DGRAM | SOCK_CLOEXEC, 0));
  auto length = socklen_t(offsetof(sockaddr_un, sun_path) + socket_.size());
  // The server does not wait for a manager that does not accept the message now; its watchdog would detect a failure.
  ::sendto(out.get(), state.data(), state.size(), MSG_DONTWAIT | MSG_NOSIGNAL, reinterpret_cast<sockaddr*>(&address),
           length);
}

}  // namespace gpuwire::server
