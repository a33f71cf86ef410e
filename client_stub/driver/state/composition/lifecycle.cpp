#include "client_stub/driver/state/session/lifecycle.hpp"

#include <pthread.h>

#include <algorithm>
#include <atomic>
#include <cstdlib>
#include <mutex>
#include <new>
#include <string>
#include <string_view>
#include <vector>

#include "client_stub/driver/state/context/context.hpp"
#include "client_stub/driver/state/handle/handle_table.hpp"
#include "client_stub/driver/state/memory/address_map.hpp"
#include "client_stub/driver/process/process.hpp"
#include "client_stub/driver/state/call/account.hpp"
#include "client_stub/driver/process/call_frame.hpp"
#include "client_stub/driver/process/error_log.hpp"
#include "client_stub/driver/state/managed_memory/managed_faults.hpp"
#include "client_stub/driver/process/log_stderr.hpp"
#include "client_stub/driver/state/session/server_session.hpp"
#include "client_stub/driver/process/tools.hpp"
#include "client_stub/driver/state/device/visible_devices.hpp"
#include "client_stub/driver/state/profile/gpu_spans.hpp"
#include "client_stub/session/environment.hpp"

namespace gpuwire::client {
namespace {

constinit std::mutex g_initialising;
// The first failure, which stays, so that a program's retries print it once. Lock: g_initialising.
CUresult g_failed = CUDA_SUCCESS;
bool g_handlers_installed = false;

// A session for a query of the driver's version, which cuInit has not taken yet. The thread that exchanges it out owns
// it.
constinit std::atomic<ServerSession*> g_connected{nullptr};
// The server's driver version; 0: unknown. A number alone: nothing is published through it.
constinit std::atomic<int> g_server_driver_version{0};

// A CUDA context does not survive fork(): the child keeps only its memory, and the session closes the child's
// connection by itself. A child may initialise if the parent had not.
void in_child() noexcept {
  new (&g_initialising) std::mutex;
  handles().after_fork_in_child();
  address_map().after_fork_in_child();
  mapped_parts().after_fork_in_child();
  address_reservations().after_fork_in_child();
  managed_faults().after_fork_in_child();
  error_log().after_fork_in_child();
  if (ServerSession* unused = g_connected.exchange(nullptr)) unused->after_fork_in_child();  // the child makes its own
  Process* owner = g_process.load(std::memory_order_relaxed);
  if (!owner) return;
  owner->server->after_fork_in_child();
  g_failed = CUDA_ERROR_NOT_INITIALIZED;
  withdraw_process(absent_process());
  t_context = nullptr;
}

// Runs before cudart's own exit handlers, which were registered earlier; their calls return CUDA_ERROR_DEINITIALIZED,
// as natively.
//
// If a handler that interrupted a call has called exit(), the call never releases its locks.
void at_exit() noexcept {
  const bool from_within = in_call();
  if (ServerSession* unused = g_connected.exchange(nullptr)) from_within ? unused->hang_up() : unused->end();
  Process* owner = g_process.load(std::memory_order_acquire);
  if (!owner) return;
  withdraw_process(CUDA_ERROR_DEINITIALIZED);
  if (from_within) return owner->server->hang_up();
  ask_server_account(*owner);
  owner->server->gpu_spans.finish();
  owner->server->end();
  managed_faults().stop();
  print_account(*owner);
}

const char* server_name() noexcept {
  const char* server = setting("GPUWIRE_SERVER");
  return server && *server ? server : nullptr;
}

CUresult connect(ServerSession& session) {
  const char* server = server_name();
  if (!server) {
    log_stderr(
        "no server: set GPUWIRE_SERVER=HOST:PORT, or start the program with 'gpuwire run --server HOST:PORT -- "
        "PROGRAM'");
    return CUDA_ERROR_NO_DEVICE;
  }
  std::string error;
  CUresult result = session.connect(server, error);
  if (result) log_stderr(error);
  else session.gpu_spans.begin();
  return result;
}

// Connects a session for this process; `result` is the reason if there is none. A failure is final. Lock:
// g_initialising.
std::unique_ptr<ServerSession> connect_process(CUresult& result) {
  if (!g_handlers_installed) {
    g_handlers_installed = true;
    pthread_atfork(nullptr, nullptr, in_child);
    std::atexit([] { at_exit(); });
  }
  report_attached_tools();
  std::unique_ptr<ServerSession> server;
  try {
    server = std::make_unique<ServerSession>();
    result = connect(*server);
  } catch (...) {
    result = CUDA_ERROR_OUT_OF_MEMORY;
  }
  g_failed = result;
  if (result) return nullptr;
  g_server_driver_version.store(server->connection().facts().driver_version, std::memory_order_relaxed);
  return server;
}

}  // namespace

CUresult install_process(std::unique_ptr<ServerSession> server, const char* visible) noexcept {
  try {
    auto owner = std::make_unique<Process>();
    const ServerFacts& facts = server->connection().facts();
    const auto ordinals = visible_devices(visible, facts.devices);
    if (!ordinals) return ordinals.error();
    for (int ordinal : *ordinals) {
      auto* context = new ContextState;
      context->handle = handles().create(wire::HandleKind::context, server.get(), context);
      if (context->handle == 0) return CUDA_ERROR_OUT_OF_MEMORY;
      context->server = server.get();
      context->device = int(owner->devices.size());
      context->primary = true;
      context->id = owner->next_id++;
      const std::vector<uint64_t>& limits = facts.devices[size_t(ordinal)].limits;
      MutexLock lock(context->mutex);
      for (unsigned i = 0; i < kContextLimits; ++i) context->limits[i] = i < limits.size() ? limits[i] : ~0ull;
      context->legacy.context = context;
      context->legacy.id = owner->next_id++;
      owner->devices.push_back({ordinal, &facts.devices[size_t(ordinal)], context});
    }
    if (owner->devices.empty()) return CUDA_ERROR_NO_DEVICE;
    const char* loading = std::getenv("CUDA_MODULE_LOADING");
    owner->loads_eagerly = loading && std::string_view(loading) == "EAGER";
    g_server_driver_version.store(facts.driver_version, std::memory_order_relaxed);
    owner->connection = &server->connection();
    owner->server = server.release();
    publish_process(*owner.release());
    return CUDA_SUCCESS;
  } catch (...) {
    return CUDA_ERROR_OUT_OF_MEMORY;
  }
}

CUresult install_process(std::unique_ptr<Session> connection, const char* visible) noexcept {
  auto server = std::unique_ptr<ServerSession>(new (std::nothrow) ServerSession);
  if (!server) return CUDA_ERROR_OUT_OF_MEMORY;
  server->adopt(std::move(connection));
  return install_process(std::move(server), visible);
}

CUresult initialise_process() noexcept {
  if (process()) return CUDA_SUCCESS;
  std::lock_guard lock(g_initialising);
  if (process()) return CUDA_SUCCESS;
  if (absent_process() == CUDA_ERROR_DEINITIALIZED) return CUDA_ERROR_DEINITIALIZED;
  if (g_failed) return g_failed;
  CUresult result = CUDA_SUCCESS;
  std::unique_ptr<ServerSession> server(g_connected.exchange(nullptr));
  if (!server) server = connect_process(result);
  if (result == CUDA_SUCCESS) result = install_process(std::move(server), std::getenv("CUDA_VISIBLE_DEVICES"));
  g_failed = result;
  if (result == CUDA_SUCCESS) share_account(*process());
  return result;
}

int server_driver_version() noexcept {
  const int version = g_server_driver_version.load(std::memory_order_relaxed);
  return version > 0 ? version : 0;  // not trusted: the server sent it
}

int driver_version() noexcept {
  if (server_driver_version() == 0 && server_name()) {
    std::lock_guard lock(g_initialising);
    if (!g_failed && !process() && !g_connected.load() && absent_process() != CUDA_ERROR_DEINITIALIZED) {
      CUresult result = CUDA_SUCCESS;
      g_connected.store(connect_process(result).release());
    }
  }
  const int version = server_driver_version();
  return version ? std::min(version, kDriverVersionMax) : kDriverVersionMax;
}

void uninstall_process_for_test() noexcept {
  Process* owner = process();
  withdraw_process(CUDA_ERROR_NOT_INITIALIZED);
  t_context = nullptr;
  g_failed = CUDA_SUCCESS;
  g_server_driver_version.store(0);
  if (!owner) return;
  // The next session may have the same address, and would take this one's streams for its own.
  for (auto kind : {wire::HandleKind::stream, wire::HandleKind::context}) {
    std::vector<uint64_t> left;
    handles().for_each(kind, owner->server, [&](uint64_t handle, void*) { left.push_back(handle); });
    for (uint64_t handle : left) handles().forget(kind, handle);
  }
  delete owner->server;
  delete owner;
}

}  // namespace gpuwire::client
