// RDMA with UCX (https://openucx.org): active messages, for which UCX chooses the eager or the rendezvous protocol.
#include <ucp/api/ucp.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <atomic>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <ctime>
#include <memory>
#include <mutex>
#include <vector>

#include "protocol/transport/rdma_plugin.hpp"

struct GpuwireRdmaFabric {
  ucp_context_h context = nullptr;
};

namespace {

constexpr unsigned kMessageId = 1;
// The longest wait for UCX when an end closes. Memory that UCX has not released by then is left to it.
constexpr long kCloseMs = 2000;

// --- the end of the process ----------------------------------------------------------------------------------------

// exit() runs UCX's destructors while other threads may still be inside UCX. This library's destructors run first,
// because it depends on UCX: they admit no more threads and wait for the threads inside. Both atomics are seq_cst:
// either a caller sees g_over, or the destructor sees the caller in g_inside.
std::atomic<bool> g_over{false};
std::atomic<unsigned> g_inside{0};
std::atomic<pid_t> g_process{0};

class Inside {
 public:
  Inside() {
    g_inside.fetch_add(1);
    if (!g_over.load()) return;
    allowed_ = false;
    g_inside.fetch_sub(1);
  }
  ~Inside() {
    if (allowed_) g_inside.fetch_sub(1);
  }
  Inside(const Inside&) = delete;
  Inside& operator=(const Inside&) = delete;
  explicit operator bool() const { return allowed_; }

 private:
  bool allowed_ = true;
};

long now_ms() {
  timespec now{};
  clock_gettime(CLOCK_MONOTONIC, &now);
  return now.tv_sec * 1000 + now.tv_nsec / 1'000'000;
}

[[gnu::destructor]] void leave() {
  g_over.store(true);
  // In a child after fork() no thread is inside, whatever the number is.
  if (g_process.load() != getpid()) return;
  for (long until = now_ms() + kCloseMs; g_inside.load() != 0 && now_ms() < until;) {
    timespec step{0, 100'000};
    nanosleep(&step, nullptr);
  }
}

// --- small things --------------------------------------------------------------------------------------------------

void write_error(char* error, size_t room, const char* what, ucs_status_t status) {
  if (room != 0) std::snprintf(error, room, "%s: %s", what, ucs_status_string(status));
}

bool is_set(const char* name) {
  const char* value = std::getenv(name);
  return value && *value;
}

}  // namespace

struct GpuwireRdmaEnd {
  ucp_worker_h worker = nullptr;
  ucp_ep_h endpoint = nullptr;
  ucp_mem_h memory = nullptr;
  ucp_context_h context = nullptr;
  const GpuwireRdmaEvents* events = nullptr;
  void* user = nullptr;
  unsigned under_way = 0;         // requests that UCX has not completed
  unsigned memory_under_way = 0;  // of those, requests that use `memory`
  // A message has been sent, after the messages that connect the endpoint.
  bool stands = false;
  bool broken = false;  // the endpoint has failed and sends nothing any more
};

namespace {

// The argument of UCX's completion: the end and the request.
struct Request {
  GpuwireRdmaEnd* end;
  uint64_t tag;
  bool of_memory;
};

void request_clean(void* request) { *static_cast<Request*>(request) = {}; }

GpuwireRdmaFabric* open_fabric(int confined, char* error, size_t room) {
  Inside inside;
  if (!inside) return nullptr;
  g_process.store(getpid());
  ucp_config_t* config = nullptr;
  if (ucs_status_t status = ucp_config_read("GPUWIRE", nullptr, &config)) {
    write_error(error, room, "UCX's configuration cannot be read", status);
    return nullptr;
  }
  // The death of another process must not end this one.
  ucp_config_modify(config, "MM_ERROR_HANDLING", "y");
  // No huge pages from System V shared memory: they would outlive a process that is killed, and a confined process has
  // no right to them.
  ucp_config_modify(config, "ALLOC", "md,mmap,heap");
  ucp_config_modify(config, "ALLOC_PRIO", "md:*,mmap,heap");
  // Memory is opened by its name in /dev/shm, because another process's /proc is out of reach.
  ucp_config_modify(config, "POSIX_USE_PROC_LINK", "n");
  // With UCX's TCP a process listens, and UCX 1.13.1 writes to any address that a connecting peer names, so only users
  // who ask for it get it.
  if (!is_set("UCX_TLS") && !is_set("GPUWIRE_UCX_TLS")) ucp_config_modify(config, "TLS", confined ? "^sm,tcp" : "^tcp");
  ucp_params_t parameters{};
  parameters.field_mask = UCP_PARAM_FIELD_FEATURES | UCP_PARAM_FIELD_REQUEST_SIZE | UCP_PARAM_FIELD_REQUEST_INIT |
                          UCP_PARAM_FIELD_MT_WORKERS_SHARED | UCP_PARAM_FIELD_ESTIMATED_NUM_EPS | UCP_PARAM_FIELD_NAME;
  parameters.features = UCP_FEATURE_AM | UCP_FEATURE_WAKEUP;
  parameters.request_size = sizeof(Request);
  parameters.request_init = request_clean;
  parameters.mt_workers_shared = 1;
  parameters.estimated_num_eps = 1;
  parameters.name = "gpuwire";
  auto fabric = std::make_unique<GpuwireRdmaFabric>();
  ucs_status_t status = ucp_init(&parameters, config, &fabric->context);
  ucp_config_release(config);
  if (status != UCS_OK) {
    write_error(error, room, "UCX finds nothing to use", status);
    return nullptr;
  }
  return fabric.release();
}

void close_fabric(GpuwireRdmaFabric* fabric) {
  Inside inside;
  if (inside) ucp_cleanup(fabric->context);
  delete fabric;
}

// --- callbacks of UCX ----------------------------------------------------------------------------------------------

ucs_status_t message_arrived(void* argument, const void* header, size_t header_bytes, void* data, size_t bytes,
                             const ucp_am_recv_param_t* parameters) {
  auto* end = static_cast<GpuwireRdmaEnd*>(argument);
  bool waits = parameters->recv_attr & UCP_AM_RECV_ATTR_FLAG_RNDV;
  int taken = waits ? end->events->arrived(end->user, header, header_bytes, nullptr, bytes, data)
                    : end->events->arrived(end->user, header, header_bytes, data, bytes, nullptr);
  // UCX keeps the descriptor of a waiting message until it is fetched.
  return waits && taken ? UCS_INPROGRESS : UCS_OK;
}

void endpoint_broken(void* argument, ucp_ep_h, ucs_status_t status) {
  auto* end = static_cast<GpuwireRdmaEnd*>(argument);
  end->broken = true;
  end->events->broken(end->user, ucs_status_string(status));
}

Request take(void* request) {
  Request taken = *static_cast<Request*>(request);
  request_clean(request);
  ucp_request_free(request);
  --taken.end->under_way;
  if (taken.of_memory) --taken.end->memory_under_way;
  return taken;
}

void send_complete(void* request, ucs_status_t status, void* user) {
  auto* end = static_cast<GpuwireRdmaEnd*>(user);
  Request done = take(request);
  if (status == UCS_OK) end->stands = true;
  end->events->sent(end->user, done.tag, status == UCS_OK);
}

void fetch_complete(void* request, ucs_status_t status, size_t, void* user) {
  auto* end = static_cast<GpuwireRdmaEnd*>(user);
  Request done = take(request);
  end->events->fetched(end->user, done.tag, status == UCS_OK);
}

// --- an end --------------------------------------------------------------------------------------------------------

int close_end(GpuwireRdmaEnd* end);

GpuwireRdmaEnd* make_end(GpuwireRdmaFabric* fabric, const GpuwireRdmaEvents* events, void* user, void* memory,
                         size_t memory_bytes, char* error, size_t room) {
  Inside inside;
  if (!inside) return nullptr;
  auto* end = new (std::nothrow) GpuwireRdmaEnd;
  if (!end) return nullptr;
  end->events = events;
  end->user = user;
  end->context = fabric->context;
  auto failed = [&](const char* what, ucs_status_t status) -> GpuwireRdmaEnd* {
    write_error(error, room, what, status);
    close_end(end);
    return nullptr;
  };
  ucp_worker_params_t worker{};
  worker.field_mask = UCP_WORKER_PARAM_FIELD_THREAD_MODE;
  worker.thread_mode = UCS_THREAD_MODE_SERIALIZED;
  if (ucs_status_t status = ucp_worker_create(fabric->context, &worker, &end->worker))
    return failed("no UCX worker", status);
  ucp_am_handler_param_t handler{};
  handler.field_mask = UCP_AM_HANDLER_PARAM_FIELD_ID | UCP_AM_HANDLER_PARAM_FIELD_FLAGS |
                       UCP_AM_HANDLER_PARAM_FIELD_CB | UCP_AM_HANDLER_PARAM_FIELD_ARG;
  handler.id = kMessageId;
  handler.flags = UCP_AM_FLAG_WHOLE_MSG;
  handler.cb = message_arrived;
  handler.arg = end;
  if (ucs_status_t status = ucp_worker_set_am_recv_handler(end->worker, &handler))
    return failed("no UCX active messages", status);
  ucp_mem_map_params_t map{};
  map.field_mask = UCP_MEM_MAP_PARAM_FIELD_ADDRESS | UCP_MEM_MAP_PARAM_FIELD_LENGTH;
  map.address = memory;
  map.length = memory_bytes;
  if (ucs_status_t status = ucp_mem_map(fabric->context, &map, &end->memory))
    return failed("memory cannot be registered (ulimit -l?)", status);
  return end;
}

size_t address_of(GpuwireRdmaEnd* end, void* out, size_t room) {
  Inside inside;
  ucp_address_t* address = nullptr;
  size_t bytes = 0;
  if (!inside || ucp_worker_get_address(end->worker, &address, &bytes) != UCS_OK) return 0;
  if (bytes <= room) std::memcpy(out, address, bytes);
  ucp_worker_release_address(end->worker, address);
  return bytes;
}

int connect_end(GpuwireRdmaEnd* end, const void* address, size_t bytes, char* error, size_t room) {
  Inside inside;
  if (!inside || end->endpoint) return 0;
  // UCX reads whole words of the address.
  std::vector<uint64_t> words((bytes + sizeof(uint64_t)) / sizeof(uint64_t) + 1);
  std::memcpy(words.data(), address, bytes);
  ucp_ep_params_t parameters{};
  parameters.field_mask =
      UCP_EP_PARAM_FIELD_REMOTE_ADDRESS | UCP_EP_PARAM_FIELD_ERR_HANDLING_MODE | UCP_EP_PARAM_FIELD_ERR_HANDLER;
  parameters.address = reinterpret_cast<const ucp_address_t*>(words.data());
  parameters.err_mode = UCP_ERR_HANDLING_MODE_PEER;
  parameters.err_handler = {endpoint_broken, end};
  if (ucs_status_t status = ucp_ep_create(end->worker, &parameters, &end->endpoint)) {
    end->endpoint = nullptr;
    write_error(error, room, "no way to the other side", status);
    return 0;
  }
  return 1;
}

int outcome_of(GpuwireRdmaEnd* end, ucs_status_ptr_t request, uint64_t tag, bool of_memory) {
  if (!request) return kGpuwireRdmaDone;
  if (UCS_PTR_IS_ERR(request)) return kGpuwireRdmaFailed;
  *static_cast<Request*>(request) = {end, tag, of_memory};
  ++end->under_way;
  if (of_memory) ++end->memory_under_way;
  return kGpuwireRdmaUnderWay;
}

int send_message(GpuwireRdmaEnd* end, const void* header, size_t header_bytes, const void* data, size_t bytes,
                 uint64_t tag) {
  Inside inside;
  if (!inside || !end->endpoint) return kGpuwireRdmaFailed;
  ucp_request_param_t parameters{};
  parameters.op_attr_mask = UCP_OP_ATTR_FIELD_CALLBACK | UCP_OP_ATTR_FIELD_USER_DATA;
  parameters.cb.send = send_complete;
  parameters.user_data = end;
  if (bytes != 0) {
    parameters.op_attr_mask |= UCP_OP_ATTR_FIELD_MEMH;
    parameters.memh = end->memory;
  }
  int outcome = outcome_of(
      end, ucp_am_send_nbx(end->endpoint, kMessageId, header, header_bytes, bytes ? data : nullptr, bytes, &parameters),
      tag, bytes != 0);
  if (outcome == kGpuwireRdmaDone) end->stands = true;
  return outcome;
}

int fetch_message(GpuwireRdmaEnd* end, void* arrival, void* into, size_t bytes, uint64_t tag) {
  Inside inside;
  if (!inside) return kGpuwireRdmaFailed;
  ucp_request_param_t parameters{};
  parameters.op_attr_mask = UCP_OP_ATTR_FIELD_CALLBACK | UCP_OP_ATTR_FIELD_USER_DATA | UCP_OP_ATTR_FIELD_MEMH;
  parameters.cb.recv_am = fetch_complete;
  parameters.user_data = end;
  parameters.memh = end->memory;
  return outcome_of(end, ucp_am_recv_data_nbx(end->worker, arrival, into, bytes, &parameters), tag, true);
}

unsigned progress_end(GpuwireRdmaEnd* end) {
  Inside inside;
  return inside ? ucp_worker_progress(end->worker) : 0;
}

int descriptor_of(GpuwireRdmaEnd* end) {
  Inside inside;
  int descriptor = -1;
  return inside && ucp_worker_get_efd(end->worker, &descriptor) == UCS_OK ? descriptor : -1;
}

int arm_end(GpuwireRdmaEnd* end) {
  Inside inside;
  return !inside || ucp_worker_arm(end->worker) != UCS_ERR_BUSY;
}

// Drives UCX until it has completed `request`. Returns false if the time ran out.
bool finish(GpuwireRdmaEnd* end, ucs_status_ptr_t request, long until_ms) {
  if (!request || UCS_PTR_IS_ERR(request)) return true;
  while (ucp_request_check_status(request) == UCS_INPROGRESS) {
    if (now_ms() > until_ms) return false;
    ucp_worker_progress(end->worker);
  }
  ucp_request_free(request);
  return true;
}

// UCX cannot cancel operations that do not end in time: they stay, with this object. The memory can be released if no
// operation in flight uses it, as for an end that was never connected.
int leave_to_ucx(GpuwireRdmaEnd* end) {
  if (end->memory_under_way != 0) return 0;
  if (end->memory) ucp_mem_unmap(end->context, end->memory);
  end->memory = nullptr;
  return 1;
}

// UCX ends the process by an assertion if the messages that connect an endpoint are still queued when the endpoint is
// closed ("got REP message") or when its worker is destroyed ("unsupported"). The worker also has to outlive the
// remaining work of closed endpoints. So this function waits for both, but not for messages, which a stuck peer would
// never receive.
int close_end(GpuwireRdmaEnd* end) {
  Inside inside;
  // At the end of the process UCX's state must not be touched; the process's end releases it.
  if (!inside) return 0;
  const long until = now_ms() + kCloseMs;
  ucp_request_param_t plain{}, force{};
  force.op_attr_mask = UCP_OP_ATTR_FIELD_FLAGS;
  force.flags = UCP_EP_CLOSE_FLAG_FORCE;
  if (end->endpoint) {
    while (!end->stands && !end->broken) {
      if (now_ms() > until) return leave_to_ucx(end);
      ucp_worker_progress(end->worker);
    }
    if (!finish(end, ucp_ep_close_nbx(end->endpoint, &force), until)) return leave_to_ucx(end);
  }
  while (end->under_way != 0) {
    if (now_ms() > until) return leave_to_ucx(end);
    ucp_worker_progress(end->worker);
  }
  if (end->worker && !finish(end, ucp_worker_flush_nbx(end->worker, &plain), until)) return leave_to_ucx(end);
  if (end->memory) ucp_mem_unmap(end->context, end->memory);
  if (end->worker) ucp_worker_destroy(end->worker);
  delete end;
  return 1;
}

}  // namespace

extern "C" [[gnu::visibility("default")]] const GpuwireRdmaPlugin* gpuwire_rdma_plugin() {
  static const GpuwireRdmaPlugin plugin = {kGpuwireRdmaVersion,
                                           sizeof(GpuwireRdmaPlugin),
                                           open_fabric,
                                           close_fabric,
                                           make_end,
                                           address_of,
                                           connect_end,
                                           send_message,
                                           fetch_message,
                                           progress_end,
                                           descriptor_of,
                                           arm_end,
                                           close_end};
  return &plugin;
}
