// The broker: listens, reads the fixed preface, hands the connection to a worker process. It touches no driver.
#pragma once

#include <array>
#include <functional>
#include <list>
#include <memory>
#include <set>
#include <string>

#include <boost/asio/io_context.hpp>
#include <boost/asio/ip/tcp.hpp>
#include <boost/asio/signal_set.hpp>
#include <boost/asio/steady_timer.hpp>
#include <tl/expected.hpp>

#include "server/broker/admission.hpp"
#include "server/broker/session_book.hpp"
#include "server/broker/sessions.hpp"
#include "server/broker/tenants.hpp"
#include "server/broker/worker_pools.hpp"
#include "server/config/configuration.hpp"

namespace gpuwire::server {

struct BrokerOptions {
  boost::asio::ip::tcp::endpoint listen;
  WorkerCommand worker;
  unsigned spare_workers = 1;
  unsigned drain_seconds = 30;
  Configuration configuration = open_configuration();
};

// One thread: whoever runs the io_context. Ends (the io_context runs out of work) after a signal and the end of the last session, or when
// no worker can be started at all.
class Broker {
 public:
  Broker(boost::asio::io_context& io, BrokerOptions options);
  ~Broker();

  // Called once, when it accepts: where, and the device summary.
  using Listening = std::function<void(const boost::asio::ip::tcp::endpoint& where, const std::string& devices)>;
  // Binds and starts the workers. The error names the address and the cause.
  tl::expected<void, std::string> start(Listening listening);

  // The first call stops accepting and gives running sessions drain_seconds; the second ends them. Also on SIGTERM and SIGINT.
  void shut_down();
  // Takes effect from now on; sessions that there are go on. Errors: it does not fit the devices, and nothing has changed.
  tl::expected<void, ConfigurationErrors> reload(Configuration configuration);

  // For the parts that look on or attach, before start().
  SessionBook& book() { return book_; }
  const TenantDirectory& tenants() const { return tenants_; }
  Sessions& sessions() { return sessions_; }
  Admission& admission() { return admission_; }

  // Not empty: why the broker gave up by itself.
  const std::string& failure() const { return failure_; }

 private:
  class Visitor;  // a connection that has no worker yet

  void accept();
  void make_room();
  void visit(boost::asio::ip::tcp::socket socket);
  void admit(const std::shared_ptr<Visitor>& visitor, uint32_t preface_flags);
  WorkerPool::Events pool_events();
  void look_at_queue();
  std::vector<DeviceSet> sets_kept_ready() const;
  ConfigurationErrors misfits(const Configuration& configuration) const;
  void leave(Visitor& visitor);
  void await_signals();
  void end_if_idle();
  void worker_is_ready(const Handoff& message);

  boost::asio::io_context& io_;
  const BrokerOptions options_;
  boost::asio::ip::tcp::acceptor acceptor_;
  boost::asio::signal_set signals_;
  boost::asio::steady_timer accept_timer_;
  boost::asio::steady_timer drain_timer_;
  boost::asio::steady_timer queue_timer_;
  TenantDirectory tenants_;
  SessionBook book_;
  Admission admission_;
  Sessions sessions_;
  WorkerPools pools_;
  std::vector<ServerDevice> devices_;
  Listening listening_;
  std::list<std::shared_ptr<Visitor>> visitors_;  // oldest first; those that owe something, at most kHalfOpenMax
  std::set<std::shared_ptr<Visitor>> waiting_;    // for a worker; bounded by the admission
  std::string failure_;
  bool accepting_ = false;  // workers were ready once
  bool draining_ = false, stopping_ = false;
  bool looking_ = false;    // queue_timer_ runs
};

}  // namespace gpuwire::server
