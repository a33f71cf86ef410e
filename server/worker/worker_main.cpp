// gpuwire-worker: the process of one session. The broker prewarms it: it initialises the driver and waits for a
// client's socket.
#include <algorithm>
#include <atomic>
#include <cerrno>
#include <cstdlib>
#include <cstring>
#include <filesystem>
#include <string>
#include <variant>

#include <fmt/format.h>
#include <poll.h>
#include <sys/prctl.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <unistd.h>

#include "command_line/command_line.hpp"
#include "protocol/threads/cores.hpp"
#include "protocol/link/heartbeat.hpp"
#include "protocol/link/link.hpp"
#include "protocol/resume/exchange.hpp"
#include "protocol/tls/transport.hpp"
#include "protocol/transport/rdma_plugin.hpp"
#include "protocol/transport/rdma_setup.hpp"
#include "protocol/transport/shared_memory_setup.hpp"
#include "protocol/transport/stream.hpp"
#include "protocol/units/duration.hpp"
#include "protocol/wire/lanes.hpp"
#include "server/ipc/blocking_requests.hpp"
#include "server/ipc/part_of_server.hpp"
#include "server/driver_table.hpp"
#include "server/ledger/worker/management_view.hpp"
#include "server/management/management.hpp"
#include "server/chunk_store/chunk_store.hpp"
#include "server/module_cache/module_cache.hpp"
#include "server/worker/session/broker_shares.hpp"
#include "server/worker/connection/peer_path.hpp"
#include "server/worker/compiled_code.hpp"
#include "server/worker/confinement.hpp"
#include "server/driver/library/driver_library.hpp"
#include "server/driver/driver_stack.hpp"
#include "server/driver/trace/driver_trace.hpp"
#include "server/worker/connection/limits.hpp"
#include "server/worker/session/reports.hpp"
#include "server/worker/connection/resumption.hpp"
#include "server/worker/session/session.hpp"
#include "server/worker/session/watchdog.hpp"
#include "server/worker/connection/welcome.hpp"

namespace gpuwire::server {
namespace {

constexpr std::chrono::milliseconds kLastWord{kLastWordMs};

struct WorkerOptions {
  DriverOptions driver;
  // Serve a session of management queries.
  bool management = false;
  // A folder, or kNoModuleCache; empty: the default folder.
  std::string module_cache;
  uint64_t module_cache_bytes = ModuleCacheSettings{}.bytes_max;
  Confinement confinement = Confinement::enforce;
  std::optional<uid_t> real_user;
  // Offer RDMA.
  bool rdma = false;
  std::string rdma_plugin;
  // cupti::kAuto, cupti::kOff, or a path.
  std::string cupti = cupti::kAuto;
};

std::filesystem::path module_cache_folder(const WorkerOptions& options) {
  return options.module_cache.empty() ? default_module_cache_directory() : std::filesystem::path(options.module_cache);
}

// The files that stay accessible to the process: the code of its driver, and the module cache.
ConfinementRules confinement_rules(const WorkerOptions& options) {
  ConfinementRules rules{.level = options.confinement,
                         .real_user = options.real_user,
                         .rdma = options.rdma,
                         .devices = device_files(options.rdma),
                         .read = {std::filesystem::path(options.driver.software_library).parent_path()}};
  if (options.rdma) rules.read.push_back(options.rdma_plugin);
  // A profiled session opens CUPTI later; the toolkit's folders are readable anyway.
  if (options.cupti != cupti::kAuto && options.cupti != cupti::kOff) rules.read.push_back(options.cupti);
  if (options.module_cache != kNoModuleCache) rules.write.push_back(module_cache_folder(options));
  return rules;
}

// Returns the bound of a session's host memory: its tenant's bound, and the software device's memory. 0: no bound.
uint64_t own_memory_of(const SessionSpec& spec, const DriverLibrary& driver) {
  if (spec.host_memory_bytes == 0 || spec.host_memory_bytes >= kPageBytesMax) return 0;
  uint64_t bytes = spec.host_memory_bytes;
  if (driver.software())
    for (const ServerDevice& device : inventory_of(driver).devices) bytes += device.bytes;
  return bytes;
}

// Returns the size of the largest file: the chunk store's, or memory of the software device that programs share, which
// is a file.
uint64_t largest_file_of(const ipc::SessionDescriptors& descriptors, const DriverLibrary& driver) {
  uint64_t bytes = 0;
  struct stat store {};
  if (descriptors.chunk_disk && ::fstat(descriptors.chunk_disk.get(), &store) == 0) bytes = uint64_t(store.st_size);
  if (driver.software())
    for (const ServerDevice& device : inventory_of(driver).devices) bytes = std::max(bytes, device.bytes);
  return bytes;
}

// Returns 0 for a Unix socket, which is as fast as memory, so lanes would only use cores.
unsigned lanes_max(const SessionSpec& spec, const transport::Transport& connection) {
  std::string_view road = connection.road();
  return road == "tcp" || road == "tls" ? std::min(spec.lanes_max, wire::kLanesMax) : 0;
}

// Returns whether the connection's end is visible only after all sent bytes. This holds for TCP, where the client's
// system may hold a part of them until the worker has room.
bool road_shows_end_last(const transport::Transport& connection) {
  const std::string_view road = connection.road();
  return road == "tcp" || road == "tls";
}

// Waits until all appended frames are sent, because another thread may still be sending frames before the session's
// last message.
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

// Closes the connection after the client has read everything: closing with unread bytes would reset the connection, and
// a reset discards the reason that the client has not read yet.
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

// The channel to the broker, and the threads that wait for its answers. One in a process; it lives as long as the
// process.
struct ToBroker {
  // Set once, by the thread that makes it, with release; the sending threads read it with acquire.
  std::atomic<Watchdog*> watchdog{nullptr};
  ipc::Channel channel{OwnedDescriptor(ipc::kDescriptor), ipc::Speaker::broker, ipc::kWorkerWaitingMax, [this] {
                         if (Watchdog* watches = watchdog.load(std::memory_order_acquire)) watches->broker_full();
                       }};
  ipc::BlockingRequests requests{channel};

  // Sends a note. A note to a broker that has ended is lost, which is harmless.
  void note(std::string text) { channel.send(ipc::Note{std::move(text)}); }
  // Sends the process's last message.
  void failed(std::string why) {
    channel.send(ipc::Failed{std::move(why)});
    channel.flush(kLastWord);
  }
  void ended(EndCause cause, std::string why) {
    channel.send(ipc::Ended{cause, std::move(why)});
    channel.flush(kLastWord);
  }
};

std::string describe(const ClientFacts& client) {
  return fmt::format("{} (process {} on {}, release {})", client.program, client.process_id, client.host,
                     client.release);
}

// Opens the module cache. A missing cache costs time, not correctness.
std::unique_ptr<ModuleCache> open_module_cache(const WorkerOptions& options, ToBroker& broker) {
  if (options.module_cache == kNoModuleCache) return nullptr;
  auto cache = ModuleCache::open({.directory = module_cache_folder(options), .bytes_max = options.module_cache_bytes});
  if (cache) return std::move(*cache);
  broker.note("no module cache: " + cache.error());
  return nullptr;
}

// Opens the tenant's chunk store, if it has one. A missing store costs time, not correctness.
std::unique_ptr<ChunkStore> open_chunks(ipc::SessionDescriptors& descriptors, const SessionSpec& spec,
                                        const DriverStack& stack, ToBroker& broker) {
  std::vector<ChunkFile> files;
  uint64_t uncharged_bytes = 0;
  for (OwnedDescriptor* descriptor : {&descriptors.chunk_memory, &descriptors.chunk_disk}) {
    if (!*descriptor) continue;
    auto file = ChunkFile::open(std::move(*descriptor));
    if (!file) {
      broker.note("no chunk store: " + file.error());
      continue;
    }
    if (descriptor == &descriptors.chunk_memory && !spec.chunks_charged) uncharged_bytes = file->bytes();
    files.push_back(std::move(*file));
  }
  if (files.empty()) return nullptr;
  LinkCounters* counters = stack.gated() ? &stack.gated()->page->link : nullptr;
  ChunkStore::Counters count;
  if (counters)
    count = {
        .found =
            [counters](uint64_t chunks, uint64_t bytes) {
              counters->chunks_found.fetch_add(chunks, std::memory_order_relaxed);
              counters->chunk_bytes_found.fetch_add(bytes, std::memory_order_relaxed);
            },
        .kept = [counters](uint64_t bytes) { counters->chunk_bytes_kept.fetch_add(bytes, std::memory_order_relaxed); }};
  return std::make_unique<ChunkStore>(std::move(files), stack.ledger() ? &stack.ledger()->host_memory() : nullptr,
                                      uncharged_bytes, std::move(count));
}

// The RDMA fabric, to which clients may ask to switch their connections.
struct Rdma {
  std::shared_ptr<transport::RdmaFabric> fabric;
  // The reason why there is no fabric.
  std::string none = "this server offers none";
};

// Opens the RDMA library if RDMA is offered. Without RDMA sessions use TCP.
Rdma open_rdma(const WorkerOptions& options, ToBroker& broker) {
  Rdma rdma;
  if (!options.rdma) return rdma;
  auto fabric = transport::RdmaFabric::open(options.rdma_plugin, true);
  if (!fabric) {
    rdma.none = fabric.error();
    broker.note("no RDMA: " + rdma.none);
  } else {
    rdma.fabric = std::move(*fabric);
  }
  return rdma;
}

// The process's prepared state before its session.
struct Prepared {
  ToBroker& broker;
  const Rdma& rdma;
  const ConfinementRules& rules;
  const CallTable& calls;
  capnp::MallocMessageBuilder& welcome;
  ModuleCache* module_cache;
  CompiledCode& compiled_code;
  BrokerShares& shares;
  // Null if there is no chunk store.
  ChunkStore* chunks;
  IpcGuard& ipc_guard;
  UploadOrder& upload_order;
  // Null if the session runs a program.
  Management* management;
  // The result of transport::this_machine().
  const std::string& machine;
  // The library's own function.
  WriteWord write_word;
};

// Opens the connection's transport. Over TLS both sides now prove that they have the key that the login left
// (protocol/tls/README.md); the key is wiped.
tl::expected<std::unique_ptr<transport::Transport>, std::string> open_transport(OwnedDescriptor socket,
                                                                                std::string& tls_key, ToBroker& broker,
                                                                                const Rdma& rdma) {
  constexpr std::chrono::milliseconds kTimeout{wire::kHandshakeTimeoutMs};
  using Offered = tl::expected<std::unique_ptr<transport::Transport>, std::string>;
  auto take = [&](transport::Agreed agreed) -> Offered {
    if (agreed.lost) return tl::unexpected(agreed.declined);
    if (!agreed.declined.empty()) broker.note(agreed.declined);
    return std::move(agreed.connection);
  };
  int descriptor = socket.get();
  auto stream = transport::adopt_stream(descriptor);
  if (!stream) return tl::unexpected(std::string("the client's socket cannot be used"));
  socket.release();
  if (tls_key.empty()) {
    if (std::string_view(stream->road()) == "unix")
      return take(transport::offer_shared_memory(std::move(stream), kTimeout));
    const transport::Transport& plain = *stream;
    return take(transport::offer_rdma(
        std::move(stream), [&](std::span<std::byte> out) { return transport::peek_socket(plain, out); }, rdma.fabric,
        rdma.none, kTimeout));
  }
  tls::SessionKey key;
  static_assert(sizeof key == ipc::kTlsKeyBytes);
  if (tls_key.size() != key.size()) return tl::unexpected(std::string("a TLS key of a wrong length"));
  std::memcpy(key.data(), tls_key.data(), key.size());
  tls::Context context = tls::key_server_context(key);
  OPENSSL_cleanse(tls_key.data(), tls_key.size());
  OPENSSL_cleanse(key.data(), key.size());
  auto channel = tls::TlsChannel::accept(context, descriptor);
  if (!channel) return tl::unexpected(std::string("out of memory"));
  if (auto met = channel->handshake(kTimeout); !met) return tl::unexpected(met.error());
  tls::TlsChannel& inside = *channel;
  return take(transport::offer_rdma(
      tls::tls_transport(std::move(stream), std::move(channel)),
      [&](std::span<std::byte> out) { return inside.try_peek(out); }, rdma.fabric, rdma.none, kTimeout));
}

ipc::MoveResult move_result(EvictionResult result) {
  switch (result) {
    case EvictionResult::done: return ipc::MoveResult::done;
    case EvictionResult::refused: return ipc::MoveResult::refused;
    case EvictionResult::no_room: return ipc::MoveResult::no_room;
    case EvictionResult::lost: break;
  }
  return ipc::MoveResult::lost;
}

[[noreturn]] void serve(OwnedDescriptor client, const resume::SessionId& id, SessionSpec spec,
                        const DriverTable& driver, const DriverStack& stack, const Prepared& prepared) {
  ToBroker& broker = prepared.broker;
  auto transport = open_transport(std::move(client), spec.tls_key, broker, prepared.rdma);
  if (!transport) {
    broker.ended(EndCause::fault, transport.error());
    std::exit(0);
  }
  link::Link link(std::move(*transport), {.bulk_bytes_max = kReplyBulkBytesMax});
  if (!link.valid()) {
    broker.ended(EndCause::internal, "no memory for the window");
    std::exit(0);
  }
  ::prctl(PR_SET_PDEATHSIG, 0, 0, 0, 0);  // from here on the watchdog ends the session with a word to the client
  if (stack.ledger()) show_limits(prepared.welcome, spec);
  resume::Secret secret{};
  if (spec.resume_grace_ms && !resume::make_random(secret)) spec.resume_grace_ms = 0;
  Reports reports(broker.channel);
  // Written by the thread with a connection's proof, or by the thread that reads Hello. Read when the connection is
  // lost, after the link's own hand-over, so relaxed would do.
  std::atomic<PeerPath> way{PeerPath::indirect};
  std::atomic<uint32_t> kept_ms{0};
  // Assigned below, because it needs objects that are made after the session.
  std::function<void()> welcoming;
  std::optional<Eviction> eviction;
  if (stack.evictable()) eviction.emplace(*stack.evictable(), usable_cores());
  Session session(
      {.link = &link,
       .counters = stack.gated() ? &stack.gated()->page->link : nullptr,
       .driver = &driver,
       .calls = &prepared.calls,
       .welcome = &prepared.welcome,
       .id = id,
       .resume_secret = secret,
       .resume_grace_ms = spec.resume_grace_ms,
       .hang_up_grace_ms = spec.hang_up_grace_ms,
       .lanes_max = lanes_max(spec, *link.transport()),
       .wants_heartbeats =
           [&](const transport::ConnectionEnd& said) {
             way = way_of(transport::other_end_of(link.transport()->descriptor(), prepared.machine), said);
             return way != PeerPath::same_machine;  // on the same machine the kernel reports every end
           },
       .welcoming = [&] { welcoming(); },
       .claim_primary =
           [&] { return !prepared.management && (!stack.ledger() || stack.ledger()->charge_warm_primary()); },
       .host_memory = stack.ledger() ? &stack.ledger()->host_memory() : nullptr,
       .cores = usable_cores(),
       .settings = {.module_cache = prepared.module_cache,
                    .tenant = spec.identified ? "tenant " + spec.tenant : "",
                    .shares = &prepared.shares,
                    .upload_order = prepared.management ? nullptr : &prepared.upload_order,
                    .chunks = prepared.chunks,
                    .keeping_memory =
                        [&stack](bool keeps) {
                          if (stack.ledger()) stack.ledger()->note_keeping(keeps);
                        },
                    .within_grant =
                        [&stack](const SessionSettings::Allocation& allocate) {
                          return stack.ledger() ? stack.ledger()->within_grant(allocate) : CUDA_ERROR_OUT_OF_MEMORY;
                        },
                    .beyond_grant =
                        [&stack](const SessionSettings::Allocation& allocate) {
                          return stack.ledger() ? stack.ledger()->beyond_grant(allocate) : CUDA_ERROR_OUT_OF_MEMORY;
                        },
                    .write_word = prepared.write_word},
       .tenant_known =
           [&](const std::string& tenant) {
             prepared.ipc_guard.belongs_to(tenant);
             std::vector<std::filesystem::path> own{prepared.compiled_code.belongs_to(tenant)};
             if (prepared.module_cache && !tenant.empty()) own.push_back(prepared.module_cache->prepare(tenant));
             std::erase(own, std::filesystem::path());
             return confine_to_tenant(prepared.rules, own);
           },
       .management = prepared.management,
       .gate = stack.gated() ? &stack.gated()->gate : nullptr,
       .quiet = [&broker](const std::string& why_not) { broker.channel.send(ipc::Quiet{why_not}); },
       .return_wanted = [&broker] { broker.channel.send(ipc::ReturnWanted{}); },
       .eviction = eviction ? &*eviction : nullptr,
       .blocks_moved =
           [&broker](bool back, const EvictionOutcome& outcome) {
             broker.channel.send(ipc::BlocksMoved{back, move_result(outcome.result), outcome.why});
           },
       .profiler = prepared.management ? nullptr : stack.profiler()});
  link::Heartbeat heartbeat(link, link::GivingUp::closes);
  Resumption resumption(
      {.link = link,
       .id = id,
       .secret = secret,
       .open = [&](OwnedDescriptor socket,
                   std::string tls_key) { return open_transport(std::move(socket), tls_key, broker, prepared.rdma); },
       .proved =
           [&](const transport::Transport& connection, const resume::Request& heard) {
             way = way_of(transport::other_end_of(connection.descriptor(), prepared.machine),
                          {heard.address, heard.machine});
           },
       .refused = [&broker](std::string why) { broker.channel.send(ipc::ResumeRefused{std::move(why)}); },
       .fault = [&](std::string why) { session.stop(EndCause::fault, std::move(why)); },
       .lanes_max = [&] { return session.lanes(); }});
  // On a Unix socket the end is seen at once, despite unread bytes.
  std::function<void()> poll_executor;
  if (road_shows_end_last(*link.transport())) poll_executor = [&session] { session.poll_executor(); };
  Watchdog watchdog(
      broker.channel, link.transport(),
      {.stop =
           [&](StopOrder order) {
             broker.requests.broker_back();  // a broker that has gone for good answers nothing any more
             session.stop(EndCause::stopped, std::move(order.why), order.kind);
           },
       .gone =
           [&] {
             if (stack.gated()) stack.gated()->gate.interrupt();
           },
       .hung_up = [&] { session.connection_hung_up(); },
       .grace_over =
           [&] {
             session.stop(EndCause::resume_grace,
                          fmt::format("the client did not come back within {} of the loss of its connection ({})",
                                      units::seconds_text(kept_ms.load()), link.loss()));
           },
       .on_message =
           [&](ipc::Message said) {
             std::visit(
                 ipc::Match{[&](ipc::Warn& warn) { session.log_stderr(warn.text); },
                            [&](ipc::Attach& attach) {
                              if (attach.socket) resumption.arrive(std::move(attach.socket), std::move(attach.tls_key));
                            },
                            [&](ipc::Unattended&) { broker.requests.broker_away(); },
                            [&](ipc::Adopted&) {
                              reports.notify_again();
                              session.quiescence().repeat();
                              broker.requests.broker_back();
                            },
                            [&](ipc::Quiesce&) { session.quiescence().request(); },
                            [&](ipc::GoOn&) { session.quiescence().go_on(); },
                            [&](ipc::MoveBlocks& move) { session.quiescence().move_blocks(move.back); },
                            [&](ipc::Answer& answer) { broker.requests.on_message(std::move(answer)); }, [](auto&) {}},
                 said);
           },
       .poll_executor = poll_executor});
  broker.watchdog.store(&watchdog, std::memory_order_release);
  watchdog.broker_full();  // something may have had to wait before
  auto watch_connection = [&] {
    transport::notice_lost_peer(link.transport()->descriptor(), session.heartbeats()
                                                                    ? transport::LostPeer::by_heartbeat
                                                                    : transport::LostPeer::replaceable);
  };
  link.observe([&](link::Link::State state) {
    uint32_t stay = stay_ms(way, link.kind_of_loss(), {spec.resume_grace_ms, spec.hang_up_grace_ms});
    if (state == link::Link::State::attached) {
      watch_connection();
      session.connection_attached();
      watchdog.attached(link.transport());
      reports.notify(ipc::Attached{});
    } else if (link.damaged()) {
      session.stop(EndCause::fault, link.loss());
    } else if (link.sent_goodbye() || stay == 0) {
      // A goodbye stands behind frames that the executor may be kept from.
      if (!link.sent_goodbye()) session.stop(EndCause::cut, "the client's program has ended without a goodbye");
      if (stack.gated()) stack.gated()->gate.interrupt();
      watchdog.begin_grace();
    } else {
      kept_ms = stay;
      watchdog.detached(stay);
      reports.notify(ipc::Detached{stay, link.loss()});
    }
  });
  welcoming = [&] {
    reports.notify(ipc::Begun{describe(session.client())});
    if (!session.resumable()) return;
    watch_connection();
    watchdog.outlive_connections();
  };
  std::optional<SessionEnd> end = session.begin();
  if (!end) {
    // Nothing may be sent before Welcome.
    if (session.heartbeats())
      watchdog.outlive_connections([&] {
        heartbeat.poll(link::Heartbeat::Clock::now());
        return heartbeat.left(link::Heartbeat::Clock::now());
      });
    end = session.run();
  }
  watchdog.begin_grace();
  reports.notify(ipc::Ended{end->cause, end->reason});
  close_gently(link);
  // The driver of a suspended session blocks all calls, and threads inside it.
  const bool suspended = session.quiescence().quiet();
  session.release();
  if (prepared.chunks) prepared.chunks->finish();
  if (stack.ledger() && !suspended) stack.ledger()->rest();
  prepared.compiled_code.forget();
  broker.channel.flush(kLastWord);
  if (suspended) ::_exit(0);
  std::exit(0);  // without unwinding: the watchdog watches over the driver's own clean-up too
}

// Returns null unless the worker is for management sessions. A missing library costs figures, not the session.
std::unique_ptr<Management> open_management(const WorkerOptions& options, const DriverLibrary& driver,
                                            ToBroker& broker) {
  if (!options.management) return nullptr;
  auto management = std::make_unique<Management>(ManagementLibrary::open(driver));
  if (!management->library().note().empty()) broker.note("no management library: " + management->library().note());
  return management;
}

// Returns the tenant's view of the devices in NVML; with null, NVML shows the devices as they are.
tl::expected<std::unique_ptr<ManagementView>, std::string> open_management_view(OwnedDescriptor tenant_page,
                                                                                OwnedDescriptor user_page,
                                                                                const SessionSpec& spec,
                                                                                Management* management) {
  if (!management || !tenant_page) return nullptr;
  auto view = ManagementView::open(std::move(tenant_page), std::move(user_page), spec, management->library().devices());
  if (view) (*view)->put_before(management->library().table());
  return view;
}

// Returns null unless the server's environment asks for a trace. The file is made before the confinement forbids it.
tl::expected<std::unique_ptr<DriverTrace>, std::string> open_trace() {
  const char* file = std::getenv(kDriverTraceVariable);
  if (!file || !*file) return nullptr;
  return DriverTrace::create(file);
}

int run(WorkerOptions options) {
  if (options.management) {
    options.driver.contexts = false;
    options.module_cache = kNoModuleCache;
    options.rdma = false;
  }
  ToBroker broker;
  const std::string machine = transport::this_machine();  // while it may be read
  auto trace = open_trace();
  if (!trace) {
    broker.failed(trace.error());
    return 1;
  }
  ConfinementRules rules = confinement_rules(options);
  if (*trace) {
    options.driver.loaded = [&trace](DriverTable& table) { (*trace)->put_before(table); };
    rules.kept_descriptor = (*trace)->descriptor();
  }
  auto confined = confine_process(rules);
  if (!confined) {
    broker.failed("the process could not be confined: " + confined.error());
    return 1;
  }
  if (!confined->empty()) broker.note(*confined);
  CompiledCode compiled_code(options.module_cache == kNoModuleCache ? std::filesystem::path()
                                                                    : module_cache_folder(options) / "compiled");
  auto driver = DriverLibrary::open(options.driver);
  if (!driver) {
    broker.failed(driver.error());
    return 1;
  }
  std::unique_ptr<Management> management = open_management(options, *driver, broker);
  CallTable calls = management ? make_call_table(management_replay_table(), {})
                               : make_call_table(session_replay_table(), generated_replay_table());
  auto welcome = build_welcome(*driver, calls);
  std::unique_ptr<ModuleCache> cache = open_module_cache(options, broker);
  Inventory inventory = inventory_of(*driver);
  const Rdma rdma = open_rdma(options, broker);
  if (auto listed = confine_system_calls(rules); !listed) {
    broker.failed(listed.error());
    return 1;
  }
  BrokerShares shares(broker.channel, broker.requests);
  IpcGuard ipc_guard(shares);
  UploadOrder upload_order;
  broker.channel.send(ipc::Ready{std::move(inventory)});
  while (auto said = broker.channel.await()) {
    if (std::holds_alternative<ipc::Stop>(*said)) return 0;
    auto* session = std::get_if<ipc::Serve>(&*said);
    if (!session || !session->descriptors.client) continue;
    const SessionSpec& spec = session->spec;
    ipc::SessionDescriptors& descriptors = session->descriptors;
    auto refuse = [&](const std::string& why) {
      broker.ended(EndCause::internal, why);
      return 1;
    };
    auto view =
        open_management_view(management ? std::move(descriptors.tenant_page) : OwnedDescriptor(),
                             management ? std::move(descriptors.user_page) : OwnedDescriptor(), spec, management.get());
    if (!view) return refuse(view.error());
    DriverStack stack;  // none before a driver that is only asked for facts
    if (!options.management) {
      auto opened = DriverStack::open(descriptors, spec, driver->table(), upload_order, ipc_guard,
                                      {.software = driver->software(),
                                       .cores = usable_cores(),
                                       .cupti = options.cupti,
                                       .broker = broker.channel,
                                       .requests = broker.requests});
      if (!opened) return refuse(opened.error());
      stack = std::move(*opened);
    }
    bound_own_memory(own_memory_of(spec, *driver));
    bound_own_files(largest_file_of(descriptors, *driver));
    auto chunks = options.management ? nullptr : open_chunks(descriptors, spec, stack, broker);
    serve(std::move(descriptors.client), session->wire_id, std::move(session->spec),
          options.management ? driver->table() : stack.table(), stack,
          {broker, rdma, rules, calls, *welcome, cache.get(), compiled_code, shares, chunks.get(), ipc_guard,
           upload_order, management.get(), machine, driver->table().cuStreamWriteValue32_v2});
  }
  return 0;
}

// Returns lib/gpuwire, the folder above this program's folder commands/.
std::filesystem::path library_folder() {
  std::error_code error;
  return std::filesystem::read_symlink("/proc/self/exe", error).parent_path().parent_path();
}

std::string default_software_library() { return library_folder() / "server/libgpuwire_software_cuda.so"; }

std::string default_rdma_plugin() { return library_folder() / kGpuwireRdmaLibrary; }

}  // namespace
}  // namespace gpuwire::server

int main(int argc, char** argv) {
  using namespace gpuwire::server;
  WorkerOptions options;
  options.driver.software_library = default_software_library();
  options.rdma_plugin = default_rdma_plugin();
  gpuwire::CommandLine app(part_of_server("The process of one session: what calls the driver for it."),
                           "gpuwire worker");
  app.group_of_options("");  // nobody types them
  std::string device = "auto", confinement = "enforce";
  app.add_option("--device", device).one_of({"auto", "cuda", "software"});
  app.add_option("--software-devices", options.driver.software_devices);
  app.add_option("--software-memory", options.driver.software_memory_bytes);
  app.add_option("--software-library", options.driver.software_library);
  app.add_option("--confinement", confinement).one_of({"enforce", "log", "off"});
  app.add_option("--real-user", options.real_user);
  app.add_flag("--management", options.management);
  app.add_flag("--rdma", options.rdma);
  app.add_option("--rdma-plugin", options.rdma_plugin);
  app.add_option("--cupti", options.cupti);
  app.add_option("--module-cache", options.module_cache);
  app.add_option("--module-cache-bytes", options.module_cache_bytes);
  app.group_of_options("Options");
  if (auto code = gpuwire::parse_command_line(app, argc, argv)) return *code;
  if (auto code = started_by_hand("worker")) return *code;
  options.driver.device = device == "cuda"       ? DeviceChoice::cuda
                          : device == "software" ? DeviceChoice::software
                                                 : DeviceChoice::automatic;
  options.confinement = confinement == "log"   ? Confinement::log
                        : confinement == "off" ? Confinement::off
                                               : Confinement::enforce;
  return run(std::move(options));
}
