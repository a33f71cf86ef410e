// gpuwire-serve: `gpuwire serve`.
#include <algorithm>
#include <csignal>
#include <cstdio>
#include <filesystem>
#include <iterator>
#include <memory>
#include <optional>
#include <string>
#include <thread>
#include <vector>

#include <boost/asio/io_context.hpp>
#include <boost/asio/signal_set.hpp>
#include <fmt/format.h>
#include <spdlog/spdlog.h>
#include <unistd.h>

#include "command_line/command_line.hpp"
#include "server/gpu_scheduler/gpu_scheduler_part.hpp"
#include "server/base/descriptors.hpp"
#include "server/base/machine.hpp"
#include "server/base/unexpected_error.hpp"
#include "server/broker/broker.hpp"
#include "server/broker/keeper/keeping.hpp"
#include "server/broker/keeper/kept_session.hpp"
#include "server/broker/limits.hpp"
#include "server/broker/suspension/drained_gpus.hpp"
#include "server/broker/suspension/eviction_mover.hpp"
#include "server/broker/suspension/memory_pressure.hpp"
#include "server/broker/suspension/suspender_process.hpp"
#include "server/broker/suspension/suspensions.hpp"
#include "server/broker/worker/worker_users.hpp"
#include "server/budget/budgets.hpp"
#include "server/config/listen_address.hpp"
#include "server/confinement/real_user.hpp"
#include "server/cli/serve/observation.hpp"
#include "server/cli/serve/reloader.hpp"
#include "server/cli/serve/runtime_directory.hpp"
#include "server/cli/serve/serve_options.hpp"
#include "server/cli/serve/service_manager.hpp"
#include "server/host_guard/host_guard.hpp"
#include "server/cli/serve/start_check.hpp"
#include "server/ledger/broker/broker_ledger.hpp"
#include "server/log/log.hpp"
#include "server/chunk_store/broker/tenant_chunks.hpp"
#include "server/module_cache/cache_keeper.hpp"
#include "server/module_cache/module_cache.hpp"

namespace gpuwire::server {
namespace {

constexpr const char* kDescription =
    "Serves the GPUs of this machine to CUDA programs on other machines.\n"
    "\n"
    "A program runs with `gpuwire run --server HOST:PORT -- PROGRAM ARGS`; its CUDA driver calls are sent\n"
    "here and replayed, each program in a process of its own. When the server is ready for programs, it\n"
    "writes one line to standard output:\n"
    "\n"
    "    listening on 127.0.0.1:9750, 1 x NVIDIA H200, NVIDIA 580.159.04, CUDA 13.0\n"
    "\n"
    "Everything else (sessions that end, refused connections, failures) is logged to standard error.\n";

constexpr const char* kFooter =
    "Signals:\n"
    "  SIGHUP            read the configuration file again; sessions keep running. A mistake in the file\n"
    "                    is logged, and then nothing changes.\n"
    "  SIGUSR2           exit at once and leave running sessions to the next server that is started here\n"
    "                    within adopt_grace\n"
    "  SIGTERM, SIGINT   stop accepting programs; running sessions have --drain-seconds to end. A second\n"
    "                    signal ends them at once.\n"
    "\n"
    "Exit status:\n"
    "  0  ended by a signal\n"
    "  1  the address is not available, or no worker process could open the device\n"
    "  2  wrong arguments, or mistakes in the configuration file\n"
    "  3  an error that the server has no answer to; the log says which. Running sessions go on under the next\n"
    "     server that is started here within adopt_grace\n"
    "\n"
    "Examples:\n"
    "  gpuwire serve                                          the best device, for programs on this machine\n"
    "  gpuwire serve --listen 127.0.0.1:0 --device software   a free port, no GPU needed\n"
    "  gpuwire serve --config /etc/gpuwire/server.toml        tenants, limits, TLS: docs/configuration.md\n"
    "  gpuwire serve --listen 0.0.0.0:9750 --allow-unencrypted-network\n"
    "                                                         for a network on which everybody may use this\n"
    "                                                         GPU and read the traffic\n";

// "127.0.0.1:9750 and unix:/run/gpuwire/socket"
std::string text_of(const std::vector<ListenAddress>& addresses) {
  std::string text;
  for (const ListenAddress& address : addresses) text += (text.empty() ? "" : " and ") + text_of(address);
  return text;
}

void print_listening(const std::string& where, const std::string& devices) {
  std::printf("listening on %s, %s\n", where.c_str(), devices.c_str());
  std::fflush(stdout);
}

int fail(int status, const std::string& reason) {
  std::fprintf(stderr, "gpuwire serve: %s\n", reason.c_str());
  return status;
}

int fail(int status, const ConfigurationErrors& errors) {
  for (const std::string& error : errors) std::fprintf(stderr, "gpuwire serve: %s\n", error.c_str());
  return status;
}

// Returns all addresses of the configuration. The error names an invalid one.
tl::expected<std::vector<ListenAddress>, std::string> listen_addresses(const Configuration& configuration) {
  std::vector<ListenAddress> addresses;
  for (const std::string& text : configuration.listen) {
    auto address = parse_listen(text);
    if (!address) return tl::unexpected(address.error());
    addresses.push_back(std::move(*address));
  }
  return addresses;
}

void warn_of_plain_addresses(const Configuration& configuration, const std::vector<ListenAddress>& listen) {
  if (!configuration.allow_unencrypted_network) return;
  for (const ListenAddress& address : listen) {
    if (is_reachable_from_elsewhere(address))
      spdlog::warn("unencrypted: the network between {} and its clients can read and change the data, and steal tokens",
                   text_of(address));
  }
}

// None: this process cannot make control groups on this machine; then the other limits apply (docs/security.md).
std::optional<WorkerGroups> open_worker_groups() {
  auto groups = WorkerGroups::own_group().and_then([](const auto& own) { return WorkerGroups::open(own); });
  if (groups) return std::move(*groups);
  spdlog::info("host memory: bounded without control groups: {}", groups.error());
  return std::nullopt;
}

// Null: workers have the server's user. A configured range must be available; "auto" accepts its absence.
tl::expected<std::unique_ptr<WorkerUsers>, std::string> open_worker_users(const WorkerUsersChoice& choice) {
  using From = WorkerUsersChoice::From;
  if (choice.from == From::off) return nullptr;
  auto range = range_for_workers(choice);
  if (range) {
    if (auto given = give_real_users_only(); !given) range = tl::unexpected("worker_users: " + given.error());
  }
  if (!range && choice.from == From::range) return tl::unexpected(range.error());
  if (!range) {
    spdlog::warn("sessions' processes have this server's user: {}", range.error());
    return nullptr;
  }
  spdlog::info("each session's process has a real user of its own, of {} to {}", range->first, range->last);
  return std::make_unique<WorkerUsers>(*range);
}

// The same number of sessions may query NVML in addition. Half of the unreserved descriptors may be used for shared
// objects.
void warn_of_few_descriptors(const Configuration& configuration, size_t limit) {
  size_t wanted = kDescriptorsReserved + 2 * (2 * size_t(configuration.sessions_max) * kDescriptorsPerSession);
  if (limit < wanted)
    spdlog::warn(
        "this process may have {} descriptors, and {} sessions may need {}: raise its limit (ulimit -Hn, LimitNOFILE)",
        limit, configuration.sessions_max, wanted);
}

// Null: sessions end with this process. A configured folder must be usable; an unusable default folder only causes a
// log line.
tl::expected<std::unique_ptr<Keeping>, std::string> open_keeping(boost::asio::io_context& io,
                                                                 const Configuration& configuration,
                                                                 const std::vector<ListenAddress>& listen) {
  if (configuration.adopt_grace_ms == 0) return nullptr;
  auto directory =
      configuration.runtime_directory.empty() ? default_runtime_directory(listen) : configuration.runtime_directory;
  if (directory && directory->empty()) return nullptr;
  if (directory) {
    auto keeping = Keeping::open(io, {.directory = *directory,
                                      .program = beside_this_program("gpuwire-keeper"),
                                      .grace = std::chrono::milliseconds(configuration.adopt_grace_ms),
                                      .temporary = configuration.runtime_directory.empty()});
    if (keeping || !configuration.runtime_directory.empty()) return keeping;
    directory = tl::unexpected(keeping.error());
  }
  spdlog::warn("sessions will end with this process: {}", directory.error());
  return nullptr;
}

constexpr int kEndings[] = {SIGTERM, SIGINT, SIGUSR2};

// A second signal during the shutdown must not change its course: when the last part stops waiting for a signal, the
// signal's default action is in force again, which kills the process.
void hear_signals_to_the_end() {
  // The object is never destroyed, and no handler waits for it, so it drops the signals.
  [[maybe_unused]] static auto* const heard =
      new boost::asio::signal_set(*new boost::asio::io_context(1), kEndings[0], kEndings[1], kEndings[2]);
}

// Ignores the signals once no part waits for them. A handler, even an empty one, would interrupt the sleeps of the
// parts that end, and a sleep that is interrupted more often than its timer's slack (50 us) never ends.
void ignore_signals() {
  for (int number : kEndings) std::signal(number, SIG_IGN);
}

// Reports all mistakes, those of the text first.
int check(const ServeOptions& options) {
  ReadConfiguration read = check_configuration_file(options);
  StartFindings findings =
      check_start(read.configuration, worker_command(options, read.configuration), options.module_cache);
  for (const std::string& line : findings.warnings) std::fprintf(stderr, "gpuwire serve: %s\n", line.c_str());
  ConfigurationErrors errors = std::move(read.mistakes);
  std::move(findings.errors.begin(), findings.errors.end(), std::back_inserter(errors));
  if (!errors.empty()) return fail(kUsageError, errors);
  std::printf("%s: no mistakes found\n", options.config_file.c_str());
  return 0;
}

int serve(const ServeOptions& options) {
  auto configuration = read_configuration(options);
  if (!configuration) return fail(kUsageError, configuration.error());
  auto listen = listen_addresses(*configuration);
  if (!listen) return fail(kUsageError, listen.error());
  start_log("gpuwire-serve", configuration->log_format == "json" ? LogFormat::json : LogFormat::text,
            options.log_level);
  warn_of_plain_addresses(*configuration, *listen);
  set_kill_order(::getpid(), kKillOrderOfBroker);  // only root may
  warn_of_few_descriptors(*configuration, raise_descriptor_limit());
  auto worker_users = open_worker_users(configuration->worker_users);  // before there are processes
  if (!worker_users) return fail(1, worker_users.error());
  auto groups = open_worker_groups();  // before there are processes that would have to move
  boost::asio::io_context io(1);
  auto keeping = open_keeping(io, *configuration, *listen);
  if (!keeping) return fail(1, keeping.error());
  ServiceManager manager(io);  // first, before anything is started with its variables
  WorkerCommand worker = worker_command(options, *configuration);
  worker.users = worker_users->get();
  Broker broker(io, {.listen = *listen,
                     .worker = std::move(worker),
                     .login_program = beside_this_program("gpuwire-login"),
                     .prewarmed_workers = options.prewarmed_workers,
                     .prewarmed_workers_max = options.prewarmed_workers_max,
                     .drain_seconds = options.drain_seconds,
                     .gpu_return_ms = options.gpu_return_ms,
                     .configuration = *configuration,
                     .keeping = keeping->get()});
  const uint64_t host_bytes = machine_bytes() / kHostPartOfMachine;
  BrokerLedger ledger(
      io, broker.sessions(),
      {.prewarmed_workers = options.prewarmed_workers, .keeping = keeping->get(), .host_bytes = host_bytes});
  broker.sessions().add_part(ledger);
  ledger.set_prewarmed(broker.workers());
  broker.workers().set_memory(ledger);
  TenantChunks chunks(
      {.directory = configuration->dedup_directory.empty() ? default_module_cache_directory() / "chunks"
                                                           : configuration->dedup_directory,
       .keeping = keeping->get(),
       .host_bytes = host_bytes,
       .charge = [&](scheduler::TenantId tenant, uint64_t bytes) { ledger.charge_chunks(tenant, bytes); }});
  broker.sessions().add_part(chunks);
  SuspenderProcess suspender(io, suspender_command(options, worker_users->get() != nullptr));
  EvictionMover moves({.io = io, .control = broker.sessions(), .tenants = broker.tenants(), .suspender = suspender});
  broker.sessions().add_part(moves);
  HostGuard* guard = nullptr;  // made behind the suspensions, whose memory it counts
  Suspensions suspensions({.io = io,
                           .registry = broker.registry(),
                           .control = broker.sessions(),
                           .memory = ledger,
                           .mover = moves,
                           .host_available = &available_bytes,
                           .tenant_memory_max =
                               [&](scheduler::TenantId number) {
                                 const Tenant* tenant = broker.tenants().find(number);
                                 return tenant ? tenant->settings.suspend_memory_bytes : 0;
                               },
                           .users_memory_max = [&] { return host_bytes; },
                           .host_changed = [&](scheduler::TenantId tenant) { guard->suspended_changed(tenant); }});
  suspensions.set_memory_max(configuration->suspend_memory_bytes);
  broker.sessions().add_part(suspensions);
  HostGuard host_guard(io, broker.sessions(),
                       {.machine_bytes = machine_bytes(),
                        .host_bytes = host_bytes,
                        .charged = [&](const SessionRecord& session) { return ledger.host_bytes(session); },
                        .charged_on_device =
                            [&](const SessionRecord& session, scheduler::DeviceIndex device) {
                              return ledger.held_bytes(session.number, session.tenant_id, device);
                            },
                        .suspended = [&](scheduler::TenantId tenant) { return suspensions.host_bytes(tenant); },
                        .groups = std::move(groups)});
  guard = &host_guard;
  broker.sessions().add_part(host_guard);
  broker.admission().set_memory(ledger);
  GpuSchedulerPart scheduler(io, broker.sessions(),
                             {.scheduling = configuration->scheduling,
                              .cores = std::thread::hardware_concurrency(),
                              .policy = {.batch_floor = configuration->batch_floor}});
  broker.sessions().add_part(scheduler);
  DrainedGpus drains({.io = io,
                      .registry = broker.registry(),
                      .suspensions = suspensions,
                      .idle = [&](scheduler::SessionId session) { return scheduler.idle(session); },
                      .changed = [&] { broker.drains_changed(); },
                      .file = default_drain_file(*configuration, *listen)});
  broker.sessions().add_part(drains);
  broker.admission().set_drained([&](scheduler::DeviceIndex gpu) { return drains.is_drained(gpu); });
  MemoryPressure pressure({.io = io,
                           .registry = broker.registry(),
                           .tenants = broker.tenants(),
                           .suspensions = suspensions,
                           .memory = ledger,
                           .idle = [&](scheduler::SessionId session) { return scheduler.idle(session); },
                           .queue = [&] { return broker.admission().waiting_for_memory(); },
                           .queue_changed = [&] { broker.admission().reconsider(); }});
  broker.sessions().add_part(pressure);
  broker.admission().set_suspends_for([&](scheduler::SessionId session) { return pressure.suspends_for(session); });
  ledger.set_suspensions([&](scheduler::SessionId session, scheduler::DeviceIndex device, uint64_t bytes) {
    return pressure.relieve(session, device, bytes);
  });
  Budgets budgets(io, broker.registry(), configuration->budget_file,
                  {.charged = [&](scheduler::SessionId session) { return scheduler.charged(session); },
                   .set_scavenger = [&](scheduler::SessionId session,
                                        bool scavenger) { scheduler.set_scavenger(session, scavenger); },
                   .changed = [&] { broker.admission().budgets_changed(); }});
  broker.sessions().add_part(budgets);
  broker.admission().set_budgets(budgets);
  std::optional<CacheKeeper> cache_keeper;
  if (options.module_cache != kNoModuleCache) {
    const bool named = !options.module_cache.empty();
    const std::filesystem::path folder =
        named ? std::filesystem::path(options.module_cache) : default_module_cache_directory();
    if (!named) spdlog::info("programs' GPU code is kept in {} (--module-cache DIR, or none)", folder.string());
    cache_keeper.emplace(folder, options.module_cache_bytes);
  }
  Reloader reloader(io, broker, *configuration, [&] { return read_configuration(options); });
  reloader.observe_configuration(
      [&](const Configuration& in_force) { suspensions.set_memory_max(in_force.suspend_memory_bytes); });
  auto observation = Observation::start(
      io, broker, suspensions, drains, *configuration,
      options.config_file.empty() ? Observation::Reload{} : [&](bool confirmed) { return reloader.reload(confirmed); });
  if (!observation) return fail(1, observation.error());
  (*observation)->monitor().add_source(budgets);  // first: it names the users, to whom the ledger adds
  (*observation)->monitor().add_source(ledger);
  (*observation)->monitor().add_source(scheduler);
  (*observation)->monitor().add_source(chunks);
  if (*keeping) (*observation)->keep_totals(io, **keeping);
  reloader.observe([&](const auto& result) { (*observation)->reloaded(result); });
  auto listening = [&](const std::vector<ListenAddress>& where, const std::string& devices) {
    (*observation)->listening(text_of(where), devices);
    print_listening(text_of(where), devices);
    manager.ready(devices);
  };
  if (!options.config_file.empty()) reloader.start([&] { (*observation)->reopen_files(); });
  if (auto started = broker.start(listening); !started) return fail(1, started.error());
  suspender.start(moves.between(suspensions.mover_events()));
  hear_signals_to_the_end();
  io.run();
  ignore_signals();
  if (!broker.left()) {
    (*observation)->forget_totals();
    // Also the entries of an earlier server, which this server may not have stored again.
    if (*keeping) (*keeping)->remove_all(is_total);
  }
  if (!broker.failure().empty()) return fail(1, broker.failure());
  return 0;
}

}  // namespace
}  // namespace gpuwire::server

int main(int argc, char** argv) {
  gpuwire::server::end_at_unexpected_errors();
  gpuwire::server::ServeOptions options;
  gpuwire::CommandLine app(gpuwire::server::kDescription, "gpuwire serve");
  app.footer(gpuwire::server::kFooter);
  gpuwire::server::declare(app, options);
  if (auto code = gpuwire::parse_command_line(app, argc, argv)) return *code;
  if (options.check_config) try {
      return gpuwire::server::check(options);
    } catch (const std::exception& error) {
      return gpuwire::server::fail(1, error.what());
    }
  // This function has no `catch` on purpose: a frame that catches exceptions would let the stack unwind, which would
  // end sessions.
  return gpuwire::server::serve(options);
}
