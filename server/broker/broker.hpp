// The broker accepts clients, admits their sessions, and assigns a worker to each. It touches no driver.
#pragma once

#include <chrono>
#include <functional>
#include <optional>
#include <string>
#include <vector>

#include <boost/asio/io_context.hpp>
#include <boost/asio/signal_set.hpp>
#include <boost/asio/steady_timer.hpp>
#include <tl/expected.hpp>

#include "server/broker/admission/admission.hpp"
#include "server/broker/session/adoption.hpp"
#include "server/broker/keeper/keeping.hpp"
#include "server/broker/limits.hpp"
#include "server/broker/connection/connection_manager.hpp"
#include "server/broker/session/session_registry.hpp"
#include "server/broker/session/sessions.hpp"
#include "server/broker/session/tenant_lanes.hpp"
#include "server/broker/admission/tenants.hpp"
#include "server/broker/worker/worker_pools.hpp"
#include "server/config/configuration.hpp"

namespace gpuwire::server {

struct BrokerOptions {
  std::vector<ListenAddress> listen;
  WorkerCommand worker;
  std::string login_program;           // gpuwire-login
  unsigned prewarmed_workers = 1;      // the minimum for each usual set of GPUs; 0: none
  unsigned prewarmed_workers_max = 1;  // the maximum, reached when sessions come often; never below the minimum
  unsigned drain_seconds = 30;
  uint32_t session_begin_ms = kSessionBeginMs;
  uint32_t gpu_return_ms = kGpuReturnMs;
  Configuration configuration = open_configuration();
  Keeping* keeping = nullptr;  // outlives the broker; null: sessions end with it
};

// One thread, which runs the io_context. The broker ends (the io_context runs out of work) after a signal and the end
// of the last session, or when no worker can be started at all.
class Broker {
 public:
  Broker(boost::asio::io_context& io, BrokerOptions options);
  ~Broker();

  // Called once, when the broker accepts: its addresses (with the ports that the kernel chose), and the device summary.
  using Listening = std::function<void(const std::vector<ListenAddress>& where, const std::string& devices)>;
  // Binds and starts the workers. The error names the address and the cause.
  tl::expected<void, std::string> start(Listening listening);

  // The first call stops accepting and gives running sessions drain_seconds; the second ends them. Also on SIGTERM and
  // SIGINT.
  void shut_down();
  // Ends at once, and leaves its sessions running for the next broker. Without BrokerOptions::keeping it acts as
  // shut_down(). Also on SIGUSR2.
  void leave();
  // Applies the configuration from now on; existing sessions continue. The errors say why it does not fit the devices;
  // then nothing has changed.
  tl::expected<void, ConfigurationErrors> reload(Configuration configuration);

  // GPUs are drained, or drained no more, as Admission::set_drained() tells: waiting sessions are judged again, and
  // prewarmed workers leave these GPUs or come back.
  void drains_changed();

  // For observers and attachments, before start().
  SessionRegistry& registry() { return registry_; }
  const TenantDirectory& tenants() const { return tenants_; }
  Sessions& sessions() { return sessions_; }
  Admission& admission() { return admission_; }
  ConnectionManager& connections() { return connections_; }
  WorkerPools& workers() { return pools_; }

  // A worker has reported the devices.
  bool knows_devices() const { return !devices_.empty(); }
  // Its sessions and stored entries are left for the next broker.
  bool left() const { return left_; }

  // Not empty: the reason why the broker gave up by itself.
  const std::string& failure() const { return failure_; }

 private:
  WorkerPool::Events pool_events();
  void poll_queue();
  ConfigurationErrors misfits(const Configuration& configuration) const;
  void give_up(std::string reason);
  void await_signals();
  void await_leave();
  void end_if_idle();
  void worker_is_ready(const Inventory& inventory);
  bool await_gpus(const Inventory& inventory);
  void meet_devices(const Inventory& inventory);

  boost::asio::io_context& io_;
  const BrokerOptions options_;
  boost::asio::signal_set signals_, leave_signal_;
  boost::asio::steady_timer drain_timer_;
  boost::asio::steady_timer queue_timer_;
  boost::asio::steady_timer gpu_timer_;  // until the next query of the devices
  TenantDirectory tenants_;
  SessionRegistry registry_;
  TenantLanes tenant_lanes_;
  Sessions sessions_;
  Admission admission_;
  WorkerPools pools_;
  ConnectionManager connections_;
  std::vector<ServerDevice> devices_;
  std::optional<Adoption> adoption_;  // until the devices of its sessions are present
  std::optional<std::chrono::steady_clock::time_point> gpus_awaited_until_;
  Listening listening_;
  std::string failure_;
  bool accepting_ = false;  // a worker was ready once
  bool draining_ = false, stopping_ = false, left_ = false;
  bool polling_ = false;  // queue_timer_ runs
  Lifetime lifetime_;
};

}  // namespace gpuwire::server
