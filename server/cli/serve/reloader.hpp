// Reads the configuration file again while the server runs.
#pragma once

#include <functional>
#include <string>

#include <boost/asio/io_context.hpp>
#include <boost/asio/signal_set.hpp>
#include <tl/expected.hpp>

#include "server/base/lifetime.hpp"
#include "server/broker/broker.hpp"
#include "server/config/configuration.hpp"
#include "server/control/sources.hpp"

namespace gpuwire::server {

// On the broker's thread.
class Reloader {
 public:
  using Read = std::function<tl::expected<Configuration, ConfigurationErrors>()>;
  // `started_with`: the values that take effect only at a start are compared with it.
  Reloader(boost::asio::io_context& io, Broker& broker, Configuration started_with, Read read);

  // From now on, at each SIGHUP, too. `before`: called first at each reload, for the files that are reopened then.
  void start(std::function<void()> before);
  // Called after each attempt, with the result of reload().
  using Told = std::function<void(const tl::expected<std::string, ReloadRefused>&)>;
  void observe(Told told) { notified_ = std::move(told); }
  // The changes in words, or every mistake; after a mistake the old configuration stays. It also stays when tenants
  // with sessions would be removed, unless that is `confirmed`.
  tl::expected<std::string, ReloadRefused> reload(bool confirmed);

 private:
  void await_signal();
  tl::expected<std::string, ReloadRefused> read_again(bool confirmed);
  // A line for each tenant that is gone and has sessions.
  std::vector<std::string> sessions_lost(const Configuration& configuration) const;
  // Words of the file that wait for the next start of the server.
  std::string left_for_the_next_start(const Configuration& configuration) const;

  Broker& broker_;
  const Configuration started_with_;
  Configuration current_;
  const Read read_;
  std::function<void()> before_;
  Told notified_;
  boost::asio::signal_set signal_;
  Lifetime lifetime_;
};

}  // namespace gpuwire::server
