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
  // `started_with`: the values of the start; the object reports changes of values that take effect only at a start.
  Reloader(boost::asio::io_context& io, Broker& broker, Configuration started_with, Read read);

  // Reloads at each SIGHUP from now on. `before`: called first at each reload, to reopen files.
  void start(std::function<void()> before);
  // Called after each attempt, with the result of reload().
  using Told = std::function<void(const tl::expected<std::string, ReloadRefused>&)>;
  void observe(Told told) { notified_ = std::move(told); }
  // Called with each new configuration that is in force, for parts that the broker does not know.
  using InForce = std::function<void(const Configuration&)>;
  void observe_configuration(InForce in_force) { in_force_ = std::move(in_force); }
  // Returns the changes in words, or every mistake. After a mistake the old configuration stays in force. It also stays
  // if tenants with sessions would be removed, unless the caller has `confirmed` this.
  tl::expected<std::string, ReloadRefused> reload(bool confirmed);

 private:
  void await_signal();
  tl::expected<std::string, ReloadRefused> read_again(bool confirmed);
  // Returns a line for each removed tenant with sessions.
  std::vector<std::string> sessions_lost(const Configuration& configuration) const;
  // Returns the keys of the file whose new values take effect at the next start of the server.
  std::string left_for_the_next_start(const Configuration& configuration) const;

  Broker& broker_;
  const Configuration started_with_;
  Configuration current_;
  const Read read_;
  std::function<void()> before_;
  Told notified_;
  InForce in_force_;
  boost::asio::signal_set signal_;
  Lifetime lifetime_;
};

}  // namespace gpuwire::server
