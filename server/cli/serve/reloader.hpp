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

namespace gpuwire::server {

// On the broker's thread.
class Reloader {
 public:
  using Read = std::function<tl::expected<Configuration, ConfigurationErrors>()>;
  // `started_with`: what takes effect only at a start is compared with it.
  Reloader(boost::asio::io_context& io, Broker& broker, Configuration started_with, Read read);

  // From now on, at each SIGHUP, too. `before`: called first at each reload, for the files that are reopened then.
  void start(std::function<void()> before);
  // Called after each attempt, with what reload() returned.
  using Told = std::function<void(const tl::expected<std::string, ConfigurationErrors>&)>;
  void observe(Told told) { told_ = std::move(told); }
  // What has changed in words, or every mistake; then the old configuration stays.
  tl::expected<std::string, ConfigurationErrors> reload();

 private:
  void await_signal();
  tl::expected<std::string, ConfigurationErrors> read_again();
  // Words of the file that wait for the next start of the server.
  std::string left_for_the_next_start(const Configuration& configuration) const;

  Broker& broker_;
  const Configuration started_with_;
  const Read read_;
  std::function<void()> before_;
  Told told_;
  boost::asio::signal_set signal_;
  Lifetime lifetime_;
};

}  // namespace gpuwire::server
