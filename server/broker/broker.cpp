#include "server/broker/broker.hpp"

#include <csignal>

#include <boost/asio/post.hpp>
#include <fmt/format.h>
#include <fmt/ranges.h>
#include <spdlog/spdlog.h>

#include "server/broker/limits.hpp"

namespace gpuwire::server {
namespace {

namespace asio = boost::asio;
using boost::system::error_code;

AdmissionLimits limits_of(const Configuration& configuration) {
  return {.sessions_max = configuration.sessions_max,
          .sessions_per_gpu_max = configuration.sessions_per_gpu_max,
          .gpus = {configuration.gpus.begin(), configuration.gpus.end()}};
}

SessionGraces graces_of(const Configuration& configuration) {
  return {std::chrono::milliseconds(configuration.resume_grace_ms),
          std::chrono::milliseconds(configuration.hang_up_grace_ms)};
}

}  // namespace

Broker::Broker(asio::io_context& io, BrokerOptions options)
    : io_(io),
      options_(std::move(options)),
      signals_(io),
      leave_signal_(io),
      drain_timer_(io),
      queue_timer_(io),
      gpu_timer_(io),
      tenants_(options_.configuration.tenants),
      sessions_(
          io, registry_, admission_, [this](const SessionRecord& session) -> WorkerPool& { return pools_.of(session); },
          options_.session_begin_ms),
      admission_(registry_, tenants_, limits_of(options_.configuration), sessions_.admission_events()),
      pools_(io, options_.worker, {options_.prewarmed_workers, options_.prewarmed_workers_max}, pool_events(),
             options_.keeping),
      connections_(io, options_.login_program, {sessions_, registry_},
                   {.failed = [this](const std::string& reason) { give_up(reason); },
                    .emptied = [this] { asio::post(io_, lifetime_.guard([this] { end_if_idle(); })); }}) {
  admission_.set_job_of([this](const std::string& credential) { return connections_.job_of(credential); });
  sessions_.set_graces(graces_of(options_.configuration));
  sessions_.set_lanes_max(options_.configuration.lanes_max);
  sessions_.add_part(tenant_lanes_);
  sessions_.keep(options_.keeping);
  registry_.observe([this](const SessionEvent& event) {
    if (event.session.state == SessionState::queued) poll_queue();
    // Runs after the registry has removed the session.
    if (event.kind == SessionEvent::Kind::ended || event.kind == SessionEvent::Kind::refused)
      asio::post(io_, lifetime_.guard([this] { end_if_idle(); }));
  });
}

// The ends of sessions cause events; memory that a running session frees causes none, so the queue is polled.
void Broker::poll_queue() {
  if (std::exchange(polling_, true)) return;
  queue_timer_.expires_after(std::chrono::milliseconds(kQueuePollMs));
  queue_timer_.async_wait(lifetime_.guard([this](error_code error) {
    polling_ = false;
    if (error) return;
    admission_.refuse_overdue(Admission::Clock::now());
    admission_.reconsider();
    if (admission_.anybody_waits()) poll_queue();
  }));
}

WorkerPool::Events Broker::pool_events() {
  WorkerPool::Events events = sessions_.pool_events();
  events.ready = [this](const Inventory& inventory) { worker_is_ready(inventory); };
  events.hopeless = [this](const std::string& reason) {
    if (!accepting_) give_up(reason);  // else the next client causes another attempt
  };
  return events;
}

Broker::~Broker() = default;

tl::expected<void, std::string> Broker::start(Listening listening) {
  listening_ = std::move(listening);
  if (auto started = connections_.start(options_.listen, options_.configuration); !started) return started;
  try {
    signals_.add(SIGTERM);
    signals_.add(SIGINT);
    leave_signal_.add(SIGUSR2);
  } catch (const boost::system::system_error& error) {
    return tl::unexpected("signals: " + error.code().message());
  }
  await_signals();
  await_leave();
  pools_.start();
  return {};
}

// Waits for a driver that is being reloaded or a card that is being reset: a session on that card still runs, and would
// be lost.
bool Broker::await_gpus(const Inventory& inventory) {
  if (!options_.keeping) return false;
  if (!adoption_)
    adoption_.emplace(Adoption::Parts{*options_.keeping, registry_, tenants_, sessions_}, options_.keeping->take());
  const std::string missing = adoption_->missing(inventory.devices);
  if (missing.empty()) return false;
  const auto now = std::chrono::steady_clock::now();
  if (!gpus_awaited_until_) {
    gpus_awaited_until_ = now + std::chrono::milliseconds(options_.gpu_return_ms);
    if (options_.gpu_return_ms)
      spdlog::warn("waiting up to {} s for the GPUs of running sessions: {}", options_.gpu_return_ms / 1000, missing);
  }
  if (now >= *gpus_awaited_until_) return false;
  gpu_timer_.expires_after(std::chrono::milliseconds(kGpuAskMs));
  gpu_timer_.async_wait(lifetime_.guard([this](error_code error) {
    if (!error && !draining_) pools_.start_anew();
  }));
  return true;
}

void Broker::worker_is_ready(const Inventory& inventory) {
  if (accepting_ || draining_ || await_gpus(inventory)) return;
  devices_ = inventory.devices;
  if (ConfigurationErrors errors = misfits(options_.configuration); !errors.empty())
    return give_up(fmt::format("the configuration does not fit the devices: {}", fmt::join(errors, "; ")));
  accepting_ = true;
  meet_devices(inventory);
  connections_.open([this, summary = inventory.summary] { listening_(connections_.addresses(), summary); });
}

void Broker::meet_devices(const Inventory& inventory) {
  if (!options_.keeping) {
    admission_.devices_known(devices_);
    sessions_.devices_known(devices_, tenants_);
    return pools_.keep_ready(admission_.usual_sets(), devices_.size());
  }
  devices_ = adoption_->devices(std::move(devices_));
  admission_.devices_known(devices_);
  // The pools need the number of devices before the first adopted session: they tell sets of GPUs apart by it.
  pools_.devices_known(devices_.size());
  const size_t adopted = adoption_->carry_on(devices_);
  adoption_.reset();
  if (adopted == 0)
    options_.keeping->put(
        {.session = false, .name = kKeptInventory, .text = encode_kept_inventory(inventory), .descriptors = {}});
  else if (adopted == 1) spdlog::info("1 session of an earlier server goes on");
  else spdlog::info("{} sessions of an earlier server go on", adopted);
  pools_.keep_ready(admission_.usual_sets(), devices_.size());
}

void Broker::give_up(std::string reason) {
  failure_ = std::move(reason);
  shut_down();
}

ConfigurationErrors Broker::misfits(const Configuration& configuration) const {
  std::vector<uint64_t> bytes;
  for (const ServerDevice& device : devices_) bytes.push_back(device.bytes);
  return check_devices(configuration, bytes);
}

tl::expected<void, ConfigurationErrors> Broker::reload(Configuration configuration) {
  if (!accepting_) return tl::unexpected(ConfigurationErrors{"the server is not ready yet"});
  if (ConfigurationErrors errors = misfits(configuration); !errors.empty()) return tl::unexpected(std::move(errors));
  connections_.configure(configuration);
  sessions_.set_graces(graces_of(configuration));
  sessions_.set_lanes_max(configuration.lanes_max);
  if (options_.keeping && configuration.adopt_grace_ms)
    options_.keeping->set_grace(std::chrono::milliseconds(configuration.adopt_grace_ms));
  tenants_.replace(std::move(configuration.tenants));
  sessions_.tenants_changed(tenants_);
  admission_.reload(limits_of(configuration));
  pools_.keep_ready(admission_.usual_sets(), devices_.size());
  return {};
}

void Broker::drains_changed() {
  if (!accepting_) return;
  pools_.keep_ready(admission_.usual_sets(), devices_.size());
  admission_.drains_changed();
}

// --- the end -------------------------------------------------------------------------------------------------------

void Broker::await_signals() {
  signals_.async_wait(lifetime_.guard([this](error_code error, int) {
    if (error) return;
    shut_down();
    await_signals();
  }));
}

void Broker::await_leave() {
  leave_signal_.async_wait(lifetime_.guard([this](error_code error, int) {
    if (!error) leave();
  }));
}

void Broker::leave() {
  if (!options_.keeping) {
    spdlog::warn("sessions cannot go on without this server (runtime_directory, adopt_grace): it shuts down");
    return shut_down();
  }
  const size_t left = registry_.all().size();
  spdlog::info("leaving {} session{} to the next server", left, left == 1 ? "" : "s");
  draining_ = stopping_ = left_ = true;
  connections_.close();
  pools_.let_go();
  signals_.cancel();
  leave_signal_.cancel();
  io_.stop();
}

void Broker::shut_down() {
  if (!draining_) {
    draining_ = true;
    connections_.close();
    admission_.close(RefusalCause::shutting_down, "the server is shutting down");
    pools_.close("the server is shutting down");
    if (size_t running = registry_.all().size()) {
      spdlog::info("shutting down: {} running sessions have {} s to end; a second signal ends them now", running,
                   options_.drain_seconds);
      drain_timer_.expires_after(std::chrono::seconds(options_.drain_seconds));
      drain_timer_.async_wait(lifetime_.guard([this](error_code error) {
        if (!error) shut_down();
      }));
    }
  } else if (!stopping_) {
    stopping_ = true;
    spdlog::info("ending {} sessions", registry_.all().size());
    sessions_.stop_all("the server is shutting down");
  }
  end_if_idle();
}

void Broker::end_if_idle() {
  if (!draining_ || !registry_.all().empty() || (!connections_.empty() && !stopping_)) return;
  drain_timer_.cancel();
  signals_.cancel();
  leave_signal_.cancel();
  io_.stop();
}

}  // namespace gpuwire::server
