// gpuwire-worker: the process of one session. Started ahead by the broker, it initialises the driver and waits for a
// client's socket.
#include <atomic>
#include <cerrno>
#include <cstdlib>
#include <cstring>
#include <filesystem>
#include <map>
#include <string>

#include <CLI/CLI.hpp>
#include <fmt/format.h>
#include <poll.h>
#include <sched.h>
#include <sys/prctl.h>
#include <sys/socket.h>
#include <unistd.h>

#include "command_line/command_line.hpp"
#include "protocol/link/heartbeat.hpp"
#include "protocol/link/link.hpp"
#include "protocol/resume/exchange.hpp"
#include "protocol/tls/transport.hpp"
#include "protocol/transport/shared_memory_setup.hpp"
#include "protocol/transport/stream.hpp"
#include "protocol/wire/lanes.hpp"
#include "server/ipc/ipc_message.hpp"
#include "server/ipc/session_spec.hpp"
#include "server/driver_table.hpp"
#include "server/ledger/worker/management_view.hpp"
#include "server/management/management.hpp"
#include "server/module_cache/module_cache.hpp"
#include "server/worker/session/broker_shares.hpp"
#include "server/worker/connection/client_way.hpp"
#include "server/worker/compiled_code.hpp"
#include "server/worker/confinement.hpp"
#include "server/driver/library/driver_library.hpp"
#include "server/driver/ipc_guard.hpp"
#include "server/worker/limits.hpp"
#include "server/worker/session/reports.hpp"
#include "server/worker/connection/resumption.hpp"
#include "server/worker/session/session.hpp"
#include "server/driver/session_driver.hpp"
#include "server/worker/session/watchdog.hpp"
#include "server/worker/connection/welcome.hpp"

namespace gpuwire::server {
namespace {

struct WorkerOptions {
  DriverOptions driver;
  bool management = false;   // serve a session of management queries
  std::string module_cache;  // a folder; kNoModuleCache; empty: the default one
  uint64_t module_cache_bytes = ModuleCacheSettings{}.bytes_max;
  Confinement confinement = Confinement::enforce;
};

std::filesystem::path module_cache_folder(const WorkerOptions& options) {
  return options.module_cache.empty() ? default_module_cache_directory() : std::filesystem::path(options.module_cache);
}

// What the process may still reach: the code of its driver, and the module cache.
ConfinementRules confinement_rules(const WorkerOptions& options) {
  ConfinementRules rules{.level = options.confinement,
                         .devices = device_files(),
                         .read = {std::filesystem::path(options.driver.software_library).parent_path()}};
  if (options.module_cache != kNoModuleCache) rules.write.push_back(module_cache_folder(options));
  return rules;
}

// Of this machine's memory, for a session: its tenant's bound, and what the software device keeps there. 0: no bound.
uint64_t own_memory_of(const SessionSpec& order, const DriverLibrary& driver) {
  if (order.host_memory_bytes == 0 || order.host_memory_bytes >= kPageBytesMax) return 0;
  uint64_t bytes = order.host_memory_bytes;
  if (driver.software())
    for (const ServerDevice& device : inventory_of(driver).devices) bytes += device.bytes;
  return bytes;
}

unsigned usable_cores() {
  cpu_set_t set;
  return ::sched_getaffinity(0, sizeof set, &set) == 0 ? unsigned(CPU_COUNT(&set)) : 1u;
}

// A Unix socket is as fast as the memory; several only take cores.
unsigned lanes_max(const SessionSpec& order, const transport::Transport& connection) {
  std::string_view road = connection.road();
  return road == "tcp" || road == "tls" ? std::min(order.lanes_max, wire::kLanesMax) : 0;
}

// Another thread may still be sending what comes before the session's last words; it stops when the process does.
void await_sent(link::Link& link) {
  link.lock();
  uint64_t end = link.appended();
  link.unlock();
  constexpr uint32_t kStepMs = 1;
  for (uint32_t waited_ms = 0;
       waited_ms < kPeerStallMs && !link.sent(end) && link.state() == link::Link::State::attached;
       waited_ms += kStepMs) {
    link.push(end, std::chrono::milliseconds(kPeerStallMs));
    if (!link.sent(end)) ::poll(nullptr, 0, int(kStepMs));
  }
}

// Closing with unread bytes resets the connection, and a reset throws away what the client has not read: the reason it
// is waiting for.
void close_gently(link::Link& link) {
  await_sent(link);
  auto transport = link.transport();
  transport->finish();
  std::byte discarded[4096];
  for (uint32_t waited_ms = 0; waited_ms < kEndingNoticeMs;) {
    transport::IoResult got = transport->try_receive(discarded);
    if (got.status == transport::IoStatus::closed || got.status == transport::IoStatus::failed) break;
    if (got.status == transport::IoStatus::ok) continue;
    constexpr uint32_t kStepMs = 20;
    if (!transport->wait(transport::kReadable, std::chrono::milliseconds(kStepMs))) waited_ms += kStepMs;
  }
  link.end();
}

void tell_broker(IpcMessageKind kind, uint32_t number, std::string text) {
  IpcMessage message;
  message.kind = kind;
  message.number = number;
  message.text = std::move(text);
  send_ipc_message(kIpcMessageDescriptor, message);  // a broker that has gone needs no telling
}

std::string describe(const ClientFacts& client) {
  return fmt::format("{} (process {} on {}, release {})", client.program, client.process_id, client.host,
                     client.release);
}

// A cache that cannot be had costs time, not correctness.
std::unique_ptr<ModuleCache> open_module_cache(const WorkerOptions& options) {
  if (options.module_cache == kNoModuleCache) return nullptr;
  auto cache = ModuleCache::open({.directory = module_cache_folder(options), .bytes_max = options.module_cache_bytes});
  if (cache) return std::move(*cache);
  tell_broker(IpcMessageKind::note, 0, "no module cache: " + cache.error());
  return nullptr;
}

// What a process has ready before its session.
struct Prepared {
  const ConfinementRules& rules;
  const DriverTable& guarded;  // the driver's, with the guard of IPC handles before it
  const CallTable& calls;
  capnp::MallocMessageBuilder& welcome;
  ModuleCache* module_cache;
  CompiledCode& compiled_code;
  BrokerShares& shares;
  IpcGuard& ipc_guard;
  Management* management;      // null: the session runs a program
  const std::string& machine;  // transport::this_machine()
};

// Over TLS both sides now prove that they have the key that the login left (protocol/tls/README.md), which is wiped.
tl::expected<std::unique_ptr<transport::Transport>, std::string> open_transport(OwnedDescriptor socket,
                                                                                std::string& tls_key) {
  int descriptor = socket.get();
  auto stream = transport::adopt_stream(descriptor);
  if (!stream) return tl::unexpected(std::string("the client's socket cannot be used"));
  socket.release();
  if (tls_key.empty()) {
    if (std::string_view(stream->road()) != "unix") return stream;
    auto agreed =
        transport::offer_shared_memory(std::move(stream), std::chrono::milliseconds(wire::kHandshakeTimeoutMs));
    if (agreed.lost) return tl::unexpected(agreed.declined);
    if (!agreed.declined.empty()) tell_broker(IpcMessageKind::note, 0, agreed.declined);
    return std::move(agreed.connection);
  }
  tls::SessionKey key;
  static_assert(sizeof key == kTlsKeyBytes);
  if (tls_key.size() != key.size()) return tl::unexpected(std::string("a TLS key of a wrong length"));
  std::memcpy(key.data(), tls_key.data(), key.size());
  tls::Context context = tls::key_server_context(key);
  OPENSSL_cleanse(tls_key.data(), tls_key.size());
  OPENSSL_cleanse(key.data(), key.size());
  auto channel = tls::TlsChannel::accept(context, descriptor);
  if (!channel) return tl::unexpected(std::string("out of memory"));
  if (auto met = channel->handshake(std::chrono::milliseconds(wire::kHandshakeTimeoutMs)); !met)
    return tl::unexpected(met.error());
  return tls::tls_transport(std::move(stream), std::move(channel));
}

[[noreturn]] void serve(IpcMessage message, SessionSpec order, SessionDriver driver, const Prepared& prepared) {
  auto transport = open_transport(std::move(message.socket), order.tls_key);
  if (!transport) {
    tell_broker(IpcMessageKind::ended, uint32_t(EndCause::fault), transport.error());
    std::exit(0);
  }
  link::Link link(std::move(*transport), {.bulk_bytes_max = kReplyBulkBytesMax});
  if (!link.valid()) {
    tell_broker(IpcMessageKind::ended, uint32_t(EndCause::internal), "no memory for the window");
    std::exit(0);
  }
  ::prctl(PR_SET_PDEATHSIG, 0, 0, 0, 0);  // from here on the watchdog ends the session with a word to the client
  if (driver.ledger) show_limits(prepared.welcome, order);
  resume::Secret secret{};
  if (order.resume_grace_ms && !resume::make_random(secret)) order.resume_grace_ms = 0;
  Reports reports(kIpcMessageDescriptor);
  auto broker_back = [&] {
    prepared.shares.broker_back();
    if (driver.ledger) driver.ledger->broker_back();
  };
  // Written by whoever has a connection's proof, or hears Hello; read when the connection is lost, after the link's own
  // hand-over: relaxed would do.
  std::atomic<ClientWay> way{ClientWay::indirect};
  std::atomic<uint32_t> stay_s{0};
  std::function<void()> welcoming;  // needs what is made behind the session
  Session session({.link = &link,
                   .counters = driver.gated ? &driver.gated->page->link : nullptr,
                   .driver = &driver.table(prepared.guarded),
                   .calls = &prepared.calls,
                   .welcome = &prepared.welcome,
                   .id = message.id,
                   .resume_secret = secret,
                   .resume_grace_ms = order.resume_grace_ms,
                   .lanes_max = lanes_max(order, *link.transport()),
                   .wants_heartbeats =
                       [&](const transport::ConnectionEnd& said) {
                         way = way_of(transport::other_end_of(link.transport()->descriptor(), prepared.machine), said);
                         return way != ClientWay::same_machine;  // whose system sees every end
                       },
                   .welcoming = [&] { welcoming(); },
                   .claim_primary =
                       [&] { return !prepared.management && (!driver.ledger || driver.ledger->charge_warm_primary()); },
                   .host_memory = driver.ledger ? &driver.ledger->host_memory() : nullptr,
                   .cores = usable_cores(),
                   .settings = {.module_cache = prepared.module_cache,
                                .tenant = order.identified ? "tenant " + order.tenant : "",
                                .shares = &prepared.shares},
                   .tenant_known =
                       [&](const std::string& tenant) {
                         prepared.ipc_guard.belongs_to(tenant);
                         std::vector<std::filesystem::path> own{prepared.compiled_code.belongs_to(tenant)};
                         if (prepared.module_cache && !tenant.empty())
                           own.push_back(prepared.module_cache->prepare(tenant));
                         std::erase(own, std::filesystem::path());
                         return confine_to_tenant(prepared.rules, own);
                       },
                   .management = prepared.management,
                   .gate = driver.gated ? &driver.gated->gate : nullptr});
  link::Heartbeat heartbeat(link, link::GivingUp::closes);
  Resumption resumption(
      {.link = link,
       .id = message.id,
       .secret = secret,
       .open = [](OwnedDescriptor socket, std::string tls_key) { return open_transport(std::move(socket), tls_key); },
       .proved =
           [&](const transport::Transport& connection, const resume::Heard& heard) {
             way = way_of(transport::other_end_of(connection.descriptor(), prepared.machine),
                          {heard.address, heard.machine});
           },
       .refused = [](std::string why) { tell_broker(IpcMessageKind::resume_refused, 0, std::move(why)); },
       .fault = [&](std::string why) { session.stop(EndCause::fault, std::move(why)); },
       .lanes_max = [&] { return session.lanes(); }});
  Watchdog watchdog(kIpcMessageDescriptor, link.transport(),
                    {.stop =
                         [&](std::string reason) {
                           broker_back();  // a broker that has gone for good answers nothing any more
                           session.stop(EndCause::stopped, std::move(reason));
                         },
                     .gone =
                         [&] {
                           if (driver.gated) driver.gated->gate.interrupt();
                         },
                     .hung_up = [&] { session.connection_hung_up(); },
                     .grace_over =
                         [&] {
                           session.stop(EndCause::resume_grace,
                                        fmt::format("the client did not come back within {} s", stay_s.load()));
                         },
                     .hear =
                         [&](IpcMessage said) {
                           if (said.kind == IpcMessageKind::warn) session.say(said.text);
                           else if (said.kind == IpcMessageKind::attach)
                             resumption.arrive(std::move(said.socket), std::move(said.text));
                           else if (said.kind == IpcMessageKind::unattended) {
                             prepared.shares.broker_away();
                             if (driver.ledger) driver.ledger->broker_away();
                           } else if (said.kind == IpcMessageKind::adopted) {
                             reports.tell_again();
                             broker_back();
                           } else if (said.kind == IpcMessageKind::memory_answer && driver.ledger) {
                             driver.ledger->heard(said);
                           } else {
                             prepared.shares.heard(std::move(said));
                           }
                         }});
  auto watch_connection = [&] {
    transport::notice_lost_peer(link.transport()->descriptor(), session.heartbeats()
                                                                    ? transport::LostPeer::by_heartbeat
                                                                    : transport::LostPeer::replaceable);
  };
  link.observe([&](link::Link::State state) {
    uint32_t stay = stay_ms(way, link.kind_of_loss(), {order.resume_grace_ms, order.hang_up_grace_ms});
    if (state == link::Link::State::attached) {
      watch_connection();
      session.connection_attached();
      watchdog.attached(link.transport());
      reports.tell(IpcMessageKind::attached, 0, {});
    } else if (link.damaged()) {
      session.stop(EndCause::fault, link.loss());
    } else if (link.said_goodbye() || stay == 0) {
      // A goodbye stands behind frames that the executor may be kept from.
      if (!link.said_goodbye()) session.stop(EndCause::cut, "the client's program has ended without a goodbye");
      if (driver.gated) driver.gated->gate.interrupt();
      watchdog.begin_grace();
    } else {
      stay_s = stay / 1000;
      watchdog.detached(stay);
      reports.tell(IpcMessageKind::detached, stay, link.loss());
    }
  });
  welcoming = [&] {
    reports.tell(IpcMessageKind::begun, 0, describe(session.client()));
    if (!session.resumable()) return;
    watch_connection();
    watchdog.outlive_connections();
  };
  std::optional<SessionEnd> end = session.begin();
  if (!end) {
    // Nothing may be sent before Welcome.
    if (session.heartbeats())
      watchdog.outlive_connections([&] {
        heartbeat.look(link::Heartbeat::Clock::now());
        return heartbeat.left(link::Heartbeat::Clock::now());
      });
    end = session.run();
  }
  watchdog.begin_grace();
  reports.tell(IpcMessageKind::ended, uint32_t(end->cause), end->reason);
  close_gently(link);
  session.release();
  if (driver.ledger) driver.ledger->rest();
  prepared.compiled_code.forget();
  std::exit(0);  // without unwinding: the watchdog watches over the driver's own clean-up too
}

// Null unless the worker is for management sessions. A library that cannot be had costs figures, not the session.
std::unique_ptr<Management> open_management(const WorkerOptions& options, const DriverLibrary& driver) {
  if (!options.management) return nullptr;
  auto management = std::make_unique<Management>(ManagementLibrary::open(driver));
  if (!management->library().note().empty())
    tell_broker(IpcMessageKind::note, 0, "no management library: " + management->library().note());
  return management;
}

// Null: NVML shows the devices as they are.
tl::expected<std::unique_ptr<ManagementView>, std::string> open_management_view(IpcMessage& message,
                                                                                const SessionSpec& order,
                                                                                Management* management) {
  OwnedDescriptor page = management ? take(message, SpecDescriptor::tenant_page) : OwnedDescriptor();
  if (!page) return nullptr;
  auto view = ManagementView::open(std::move(page), order, management->library().devices());
  if (view) (*view)->put_before(management->library().table());
  return view;
}

int run(WorkerOptions options) {
  if (options.management) {
    options.driver.contexts = false;
    options.module_cache = kNoModuleCache;
  }
  const std::string machine = transport::this_machine();  // while it may be read
  const ConfinementRules rules = confinement_rules(options);
  auto confined = confine_process(rules);
  if (!confined) {
    tell_broker(IpcMessageKind::failed, 0, "the process could not be confined: " + confined.error());
    return 1;
  }
  if (!confined->empty()) tell_broker(IpcMessageKind::note, 0, *confined);
  CompiledCode compiled_code(options.module_cache == kNoModuleCache ? std::filesystem::path()
                                                                    : module_cache_folder(options) / "compiled");
  auto driver = DriverLibrary::open(options.driver);
  if (!driver) {
    tell_broker(IpcMessageKind::failed, 0, driver.error());
    return 1;
  }
  std::unique_ptr<Management> management = open_management(options, *driver);
  CallTable calls = management ? make_call_table(management_replay_table(), {})
                               : make_call_table(session_replay_table(), generated_replay_table());
  auto welcome = build_welcome(*driver, calls);
  std::unique_ptr<ModuleCache> cache = open_module_cache(options);
  std::string inventory = encode(inventory_of(*driver));
  if (auto listed = confine_system_calls(options.confinement); !listed) {
    tell_broker(IpcMessageKind::failed, 0, listed.error());
    return 1;
  }
  BrokerShares shares(kIpcMessageDescriptor);
  IpcGuard ipc_guard(shares);
  DriverTable guarded = driver->table();
  ipc_guard.put_before(guarded);
  tell_broker(IpcMessageKind::ready, uint32_t(driver->device_count()), inventory);
  IpcMessage message;
  for (;;) {
    if (receive_ipc_message(kIpcMessageDescriptor, true, message) != IpcMessageReceived::message ||
        message.kind == IpcMessageKind::stop)
      return 0;
    if (message.kind != IpcMessageKind::session || !message.socket) continue;
    auto order = decode_session_spec(message.text);
    OPENSSL_cleanse(message.text.data(), message.text.size());  // may hold the connection's key
    if (!order) {
      tell_broker(IpcMessageKind::ended, uint32_t(EndCause::internal),
                  "the broker's order cannot be read: " + order.error());
      return 1;
    }
    auto view = open_management_view(message, *order, management.get());
    if (!view) {
      tell_broker(IpcMessageKind::ended, uint32_t(EndCause::internal), view.error());
      return 1;
    }
    tl::expected<SessionDriver, std::string> session_driver;
    if (!options.management)
      session_driver = SessionDriver::open(
          message, *order, guarded,
          {.software = driver->software(), .cores = usable_cores(), .broker = kIpcMessageDescriptor});
    if (!session_driver) {
      tell_broker(IpcMessageKind::ended, uint32_t(EndCause::internal), session_driver.error());
      return 1;
    }
    bound_own_memory(own_memory_of(*order, *driver));
    serve(std::move(message), std::move(*order), std::move(*session_driver),
          {rules, guarded, calls, *welcome, cache.get(), compiled_code, shares, ipc_guard, management.get(), machine});
  }
}

std::string default_software_library() {
  std::error_code error;
  auto program = std::filesystem::read_symlink("/proc/self/exe", error);
  return (program.parent_path().parent_path() / "server/libgpuwire_software_cuda.so").string();
}

}  // namespace
}  // namespace gpuwire::server

int main(int argc, char** argv) {
  using namespace gpuwire::server;
  WorkerOptions options;
  options.driver.software_library = default_software_library();
  CLI::App app("The process of one gpuwire session. Started by gpuwire-serve; of no use by itself.", "gpuwire worker");
  std::map<std::string, DeviceChoice> devices{
      {"auto", DeviceChoice::automatic}, {"cuda", DeviceChoice::cuda}, {"software", DeviceChoice::software}};
  app.add_option("--device", options.driver.device)->transform(CLI::CheckedTransformer(devices));
  app.add_option("--software-devices", options.driver.software_devices);
  app.add_option("--software-memory", options.driver.software_memory_bytes);
  app.add_option("--software-library", options.driver.software_library);
  std::map<std::string, Confinement> levels{
      {"enforce", Confinement::enforce}, {"log", Confinement::log}, {"off", Confinement::off}};
  app.add_option("--confinement", options.confinement)->transform(CLI::CheckedTransformer(levels));
  app.add_flag("--management", options.management);
  app.add_option("--module-cache", options.module_cache);
  app.add_option("--module-cache-bytes", options.module_cache_bytes);
  if (auto code = gpuwire::parse_command_line(app, argc, argv)) return *code;
  return run(std::move(options));
}
