// gpuwire-worker: the process of one session. Started ahead by the broker, it initialises the driver and waits for a client's socket.
#include <cerrno>
#include <cstdlib>
#include <cstring>
#include <filesystem>
#include <map>
#include <string>

#include <CLI/CLI.hpp>
#include <fmt/format.h>
#include <netinet/in.h>
#include <netinet/tcp.h>
#include <poll.h>
#include <sched.h>
#include <sys/prctl.h>
#include <sys/socket.h>
#include <unistd.h>

#include "server/broker/handoff.hpp"
#include "server/broker/session_order.hpp"
#include "server/driver_table.hpp"
#include "server/gate/gate.hpp"
#include "server/gate/gated_driver.hpp"
#include "server/gate/session_page.hpp"
#include "server/ledger/management_view.hpp"
#include "server/ledger/worker_ledger.hpp"
#include "server/management/management.hpp"
#include "server/module_cache/module_cache.hpp"
#include "server/worker/broker_shares.hpp"
#include "server/worker/channel.hpp"
#include "server/worker/compiled_code.hpp"
#include "server/worker/confinement.hpp"
#include "server/worker/driver_library.hpp"
#include "server/worker/ipc_guard.hpp"
#include "server/worker/limits.hpp"
#include "server/worker/session.hpp"
#include "server/worker/warden.hpp"
#include "server/worker/welcome.hpp"

namespace gpuwire::server {
namespace {

struct WorkerOptions {
  DriverOptions driver;
  bool management = false;   // serve a session of management queries
  std::string module_cache;  // a folder; kNoModuleCache; empty: the default one
  uint64_t module_cache_bytes = ModuleCacheSettings{}.bytes_max;
  Confinement confinement = Confinement::enforce;
};

constexpr const char* kNoModuleCache = "none";

std::filesystem::path module_cache_folder(const WorkerOptions& options) {
  return options.module_cache.empty() ? default_module_cache_directory() : std::filesystem::path(options.module_cache);
}

// What the process may still reach: the code of its driver, and the module cache.
ConfinementRules confinement_rules(const WorkerOptions& options) {
  ConfinementRules rules{.level = options.confinement, .read = {std::filesystem::path(options.driver.software_library).parent_path()}};
  if (options.module_cache != kNoModuleCache) rules.write.push_back(module_cache_folder(options));
  return rules;
}

unsigned usable_cores() {
  cpu_set_t set;
  return ::sched_getaffinity(0, sizeof set, &set) == 0 ? unsigned(CPU_COUNT(&set)) : 1u;
}

void tune(int socket) {
  auto set = [socket](int level, int option, int value) { ::setsockopt(socket, level, option, &value, sizeof value); };
  set(IPPROTO_TCP, TCP_NODELAY, 1);
  set(IPPROTO_TCP, TCP_USER_TIMEOUT, int(kPeerStallMs));
  set(SOL_SOCKET, SO_KEEPALIVE, 1);
  set(IPPROTO_TCP, TCP_KEEPIDLE, int(kKeepaliveIdleS));
  set(IPPROTO_TCP, TCP_KEEPINTVL, int(kKeepaliveIntervalS));
  set(IPPROTO_TCP, TCP_KEEPCNT, int(kKeepaliveProbes));
}

// Closing with unread bytes resets the connection, and a reset throws away what the client has not read: the reason it is waiting for.
void close_gently(Channel& channel) {
  int socket = channel.descriptor();
  channel.finish();
  char discarded[4096];
  for (uint32_t waited_ms = 0; waited_ms < kEndingNoticeMs;) {
    ssize_t got = ::recv(socket, discarded, sizeof discarded, MSG_DONTWAIT);
    if (got == 0 || (got < 0 && errno != EAGAIN && errno != EINTR)) break;
    if (got > 0) continue;
    constexpr uint32_t kStepMs = 20;
    pollfd ready{socket, POLLIN, 0};
    ::poll(&ready, 1, int(kStepMs));
    if (!ready.revents) waited_ms += kStepMs;
  }
  ::close(socket);
}

void tell_broker(HandoffKind kind, uint32_t number, std::string text) {
  Handoff handoff;
  handoff.kind = kind;
  handoff.number = number;
  handoff.text = std::move(text);
  send_handoff(kHandoffDescriptor, handoff);  // a broker that has gone needs no telling
}

std::string describe(const ClientFacts& client) {
  return fmt::format("{} (process {} on {}, release {})", client.program, client.process_id, client.host, client.release);
}

// A cache that cannot be had costs time, not correctness.
std::unique_ptr<ModuleCache> open_module_cache(const WorkerOptions& options) {
  if (options.module_cache == kNoModuleCache) return nullptr;
  auto cache = ModuleCache::open({.directory = module_cache_folder(options), .bytes_max = options.module_cache_bytes});
  if (cache) return std::move(*cache);
  tell_broker(HandoffKind::note, 0, "no module cache: " + cache.error());
  return nullptr;
}

// What a process has ready before its session.
struct Prepared {
  const DriverTable& guarded;  // the driver's, with the guard of IPC handles before it
  const CallTable& calls;
  capnp::MallocMessageBuilder& welcome;
  ModuleCache* module_cache;
  CompiledCode& compiled_code;
  BrokerShares& shares;
  IpcGuard& ipc_guard;
  Management* management;  // null: the session runs a program
};

// The gate before a driver, and what it stands on.
struct GatedDriver {
  MappedPage page;
  OwnedDescriptor doorbell;
  DriverTable table;
  Gate gate;

  GatedDriver(MappedPage mapped, OwnedDescriptor bell, const DriverTable& behind)
      : page(std::move(mapped)), doorbell(std::move(bell)), table(behind),
        gate({.page = page.get(), .doorbell = doorbell.get(), .driver = &behind, .cores = usable_cores()}) {
    put_gate_before(table, gate);
  }
};

// Null: the broker shares the GPU without one. A page that is not one ends the session: its work would pass unasked.
tl::expected<std::unique_ptr<GatedDriver>, std::string> open_gate(Handoff& handoff, const DriverTable& behind) {
  OwnedDescriptor descriptor = take(handoff, OrderDescriptor::session_page);
  if (!descriptor) return nullptr;
  auto page = MappedPage::map(std::move(descriptor));
  if (!page) return tl::unexpected(page.error());
  return std::make_unique<GatedDriver>(std::move(*page), take(handoff, OrderDescriptor::doorbell), behind);
}

// The device's own output takes the same way to the client. A client that reads nothing misses it.
void say_to_client(const std::string& line) {
  pollfd room{STDERR_FILENO, POLLOUT, 0};
  if (::poll(&room, 1, 0) == 1) [[maybe_unused]] ssize_t written = ::write(STDERR_FILENO, line.data(), line.size());
}

// Null: the broker keeps no account of the tenant's memory.
tl::expected<std::unique_ptr<WorkerLedger>, std::string> open_ledger(Handoff& handoff, const SessionOrder& order, const DriverTable& behind, bool software) {
  OwnedDescriptor page = take(handoff, OrderDescriptor::tenant_page);
  if (!page) return nullptr;
  return WorkerLedger::open(std::move(page), order, behind, software, kHandoffDescriptor);
}

// Over TLS both sides now prove that they have the key that the login left (protocol/tls/README.md). Takes the order's copy of it.
tl::expected<Channel, std::string> open_channel(int socket, SessionOrder& order) {
  if (order.tls_key.empty()) return Channel(socket);
  tls::SessionKey key;
  static_assert(sizeof key == kTlsKeyBytes);
  std::memcpy(key.data(), order.tls_key.data(), key.size());
  tls::Context context = tls::key_server_context(key);
  OPENSSL_cleanse(order.tls_key.data(), order.tls_key.size());
  OPENSSL_cleanse(key.data(), key.size());
  auto channel = tls::TlsChannel::accept(context, socket);
  if (!channel) return tl::unexpected(std::string("out of memory"));
  if (auto met = channel->handshake(std::chrono::milliseconds(wire::kHandshakeTimeoutMs)); !met) return tl::unexpected(met.error());
  return Channel(socket, std::move(channel));
}

// The driver of a session, and what stands before it. Each null when the broker sends no page for it.
struct SessionDriver {
  std::unique_ptr<WorkerLedger> ledger;
  std::unique_ptr<GatedDriver> gated;

  const DriverTable& table(const DriverTable& behind) const { return gated ? gated->table : ledger ? ledger->table() : behind; }
};

// Calls pass the gate, then the ledger, then reach the driver.
tl::expected<SessionDriver, std::string> open_session_driver(Handoff& handoff, const SessionOrder& order, const DriverTable& behind, bool software) {
  SessionDriver driver;
  auto ledger = open_ledger(handoff, order, behind, software);
  if (!ledger) return tl::unexpected(ledger.error());
  driver.ledger = std::move(*ledger);
  auto gated = open_gate(handoff, driver.table(behind));
  if (!gated) return tl::unexpected(gated.error());
  driver.gated = std::move(*gated);
  return driver;
}

[[noreturn]] void serve(Handoff handoff, SessionOrder order, SessionDriver driver, const Prepared& prepared) {
  int socket = handoff.socket.release();
  tune(socket);
  auto channel = open_channel(socket, order);
  if (!channel) {
    tell_broker(HandoffKind::ended, uint32_t(EndCause::fault), channel.error());
    std::exit(0);
  }
  if (driver.gated) channel->count_into(&driver.gated->page->link);
  ::prctl(PR_SET_PDEATHSIG, 0, 0, 0, 0);  // from here on the warden ends the session with a word to the client
  if (driver.ledger) show_limits(prepared.welcome, order);
  Session session({.channel = &*channel,
                   .driver = &driver.table(prepared.guarded),
                   .calls = &prepared.calls,
                   .welcome = &prepared.welcome,
                   .id = handoff.id,
                   .claim_primary = [&] { return !prepared.management && (!driver.ledger || driver.ledger->charge_warm_primary()); },
                   .cores = usable_cores(),
                   .settings = {.module_cache = prepared.module_cache, .tenant = order.identified ? "tenant " + order.tenant : "", .shares = &prepared.shares},
                   .tenant_known = [&](const std::string& tenant) {
                     prepared.compiled_code.belongs_to(tenant);
                     prepared.ipc_guard.belongs_to(tenant);
                   },
                   .management = prepared.management,
                   .gate = driver.gated ? &driver.gated->gate : nullptr});
  Warden warden(kHandoffDescriptor, socket,
                {.stop = [&](std::string reason) { session.stop(EndCause::stopped, std::move(reason)); },
                 .gone = [&] { if (driver.gated) driver.gated->gate.interrupt(); },
                 .hear = [&](Handoff said) {
                   if (said.kind == HandoffKind::warn) say_to_client(said.text);
                   else if (said.kind == HandoffKind::memory_answer && driver.ledger) driver.ledger->heard(said);
                   else prepared.shares.heard(std::move(said));
                 }});
  std::optional<SessionEnd> end = session.begin();
  if (!end) {
    tell_broker(HandoffKind::begun, 0, describe(session.client()));
    end = session.run();
  }
  warden.begin_grace();
  tell_broker(HandoffKind::ended, uint32_t(end->cause), end->reason);
  close_gently(*channel);
  session.release();
  if (driver.ledger) driver.ledger->rest();
  prepared.compiled_code.forget();
  std::exit(0);  // without unwinding: the warden watches over the driver's own clean-up too
}

// Null unless the worker is for management sessions. A library that cannot be had costs figures, not the session.
std::unique_ptr<Management> open_management(const WorkerOptions& options, const DriverLibrary& driver) {
  if (!options.management) return nullptr;
  auto management = std::make_unique<Management>(ManagementLibrary::open(driver));
  if (!management->library().note().empty()) tell_broker(HandoffKind::note, 0, "no management library: " + management->library().note());
  return management;
}

// Null: NVML shows the devices as they are.
tl::expected<std::unique_ptr<ManagementView>, std::string> open_management_view(Handoff& handoff, const SessionOrder& order, Management* management) {
  OwnedDescriptor page = management ? take(handoff, OrderDescriptor::tenant_page) : OwnedDescriptor();
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
  auto confined = confine_process(confinement_rules(options));
  if (!confined) {
    tell_broker(HandoffKind::failed, 0, "the process could not be confined: " + confined.error());
    return 1;
  }
  if (!confined->empty()) tell_broker(HandoffKind::note, 0, *confined);
  CompiledCode compiled_code(options.module_cache == kNoModuleCache ? std::filesystem::path() : module_cache_folder(options) / "compiled");
  auto driver = DriverLibrary::open(options.driver);
  if (!driver) {
    tell_broker(HandoffKind::failed, 0, driver.error());
    return 1;
  }
  std::unique_ptr<Management> management = open_management(options, *driver);
  CallTable calls = management ? make_call_table(management_replay_table(), {}) : make_call_table(session_replay_table(), generated_replay_table());
  auto welcome = build_welcome(*driver, calls);
  std::unique_ptr<ModuleCache> cache = open_module_cache(options);
  std::string inventory = encode(inventory_of(*driver));
  if (auto listed = confine_system_calls(options.confinement); !listed) {
    tell_broker(HandoffKind::failed, 0, listed.error());
    return 1;
  }
  BrokerShares shares(kHandoffDescriptor);
  IpcGuard ipc_guard(shares);
  DriverTable guarded = driver->table();
  ipc_guard.put_before(guarded);
  tell_broker(HandoffKind::ready, uint32_t(driver->device_count()), inventory);
  Handoff handoff;
  for (;;) {
    if (receive_handoff(kHandoffDescriptor, true, handoff) != HandoffReceived::message || handoff.kind == HandoffKind::stop) return 0;
    if (handoff.kind != HandoffKind::session || !handoff.socket) continue;
    auto order = decode_session_order(handoff.text);
    OPENSSL_cleanse(handoff.text.data(), handoff.text.size());  // may hold the connection's key
    if (!order) {
      tell_broker(HandoffKind::ended, uint32_t(EndCause::internal), "the broker's order cannot be read: " + order.error());
      return 1;
    }
    auto view = open_management_view(handoff, *order, management.get());
    if (!view) {
      tell_broker(HandoffKind::ended, uint32_t(EndCause::internal), view.error());
      return 1;
    }
    auto session_driver = options.management ? SessionDriver{} : open_session_driver(handoff, *order, guarded, driver->software());
    if (!session_driver) {
      tell_broker(HandoffKind::ended, uint32_t(EndCause::internal), session_driver.error());
      return 1;
    }
    serve(std::move(handoff), std::move(*order), std::move(*session_driver),
          {guarded, calls, *welcome, cache.get(), compiled_code, shares, ipc_guard, management.get()});
  }
}

std::string default_software_library() {
  std::error_code error;
  auto program = std::filesystem::read_symlink("/proc/self/exe", error);
  return (program.parent_path().parent_path() / "lib/gpuwire_server/libgpuwire_software_cuda.so").string();
}

}  // namespace
}  // namespace gpuwire::server

int main(int argc, char** argv) {
  using namespace gpuwire::server;
  WorkerOptions options;
  options.driver.software_library = default_software_library();
  CLI::App app("The process of one gpuwire session. Started by gpuwire-serve; of no use by itself.", "gpuwire-worker");
  std::map<std::string, DeviceChoice> devices{{"auto", DeviceChoice::automatic}, {"cuda", DeviceChoice::cuda}, {"software", DeviceChoice::software}};
  app.add_option("--device", options.driver.device)->transform(CLI::CheckedTransformer(devices));
  app.add_option("--software-devices", options.driver.software_devices);
  app.add_option("--software-memory", options.driver.software_memory_bytes);
  app.add_option("--software-library", options.driver.software_library);
  std::map<std::string, Confinement> levels{{"enforce", Confinement::enforce}, {"log", Confinement::log}, {"off", Confinement::off}};
  app.add_option("--confinement", options.confinement)->transform(CLI::CheckedTransformer(levels));
  app.add_flag("--management", options.management);
  app.add_option("--module-cache", options.module_cache);
  app.add_option("--module-cache-bytes", options.module_cache_bytes);
  CLI11_PARSE(app, argc, argv);
  return run(std::move(options));
}
