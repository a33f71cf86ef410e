// RDMA by way of UCX (https://openucx.org): active messages, eager or by rendezvous as UCX sees fit.
#include <sched.h>
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
  // An end has been left to UCX: its worker lives, and UCX's own thread may still look after it. Set before close() of
  // the end returns, read when the fabric is closed, which its owner does after that: relaxed is enough.
  std::atomic<bool> left_to_ucx{false};
};

struct GpuwireRdmaRegion {
  ucp_mem_h memory = nullptr;
};

namespace {

constexpr unsigned kMessageId = 1;
// What closing an end waits for UCX at most; what it has not given back by then is left to it.
constexpr long kCloseMs = 2000;
// And for a request that may have been forgotten.
constexpr long kForgottenMs = 1000;
// But on a busy machine the time may pass before this thread has looked more than once.
constexpr unsigned kLooksMin = 20'000;
constexpr const char* kNotRegistered = "memory cannot be registered (ulimit -l?)";

// --- the end of the process ----------------------------------------------------------------------------------------

// exit() runs UCX's destructors while other threads may still be inside UCX. This library's come first, since it needs
// UCX: they let nobody in any more and wait for who is inside. Both seq_cst: either a caller sees that it is over, or
// the destructor sees the caller.
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

// How long one thing is waited for by looking: until a time that several may have in common.
class Patience {
 public:
  explicit Patience(long until_ms) : until_ms_(until_ms) {}
  bool over() { return ++looks_ > kLooksMin && now_ms() > until_ms_; }

 private:
  const long until_ms_;
  unsigned looks_ = 0;
};

[[gnu::destructor]] void leave() {
  g_over.store(true);
  // In a child after fork() nobody is inside, whatever the number says.
  if (g_process.load() != getpid()) return;
  for (long until = now_ms() + kCloseMs; g_inside.load() != 0 && now_ms() < until;) {
    timespec step{0, 100'000};
    nanosleep(&step, nullptr);
  }
}

// --- small things --------------------------------------------------------------------------------------------------

void say(char* error, size_t room, const char* what, ucs_status_t status) {
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
  GpuwireRdmaFabric* fabric = nullptr;
  const GpuwireRdmaEvents* events = nullptr;
  void* user = nullptr;
  unsigned under_way = 0;         // requests that UCX has and will complete
  unsigned memory_under_way = 0;  // those of them that are about bytes, the memory's or a region's
  bool stands = false;            // a message has left: what connects the endpoint has left before it
  bool broken = false;            // the endpoint, and nothing leaves any more
  bool silent = false;            // UCX is not called for it any more
};

namespace {

// What UCX's completion brings back: which end, which request.
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
    say(error, room, "UCX's configuration cannot be read", status);
    return nullptr;
  }
  // Another process's death must not be the end of this one.
  ucp_config_modify(config, "MM_ERROR_HANDLING", "y");
  // No huge pages out of System V's shared memory: they would outlive a process that is killed, and a confined one has
  // no right to them.
  ucp_config_modify(config, "ALLOC", "md,mmap,heap");
  ucp_config_modify(config, "ALLOC_PRIO", "md:*,mmap,heap");
  // Memory by its name in /dev/shm: another process's /proc is out of reach.
  ucp_config_modify(config, "POSIX_USE_PROC_LINK", "n");
  if (confined && !is_set("UCX_TLS") && !is_set("GPUWIRE_UCX_TLS")) ucp_config_modify(config, "TLS", "^sm");
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
    say(error, room, "UCX finds nothing to use", status);
    return nullptr;
  }
  return fabric.release();
}

void close_fabric(GpuwireRdmaFabric* fabric) {
  Inside inside;
  // What a worker uses outlives it: the context, and this object with it.
  if (fabric->left_to_ucx.load(std::memory_order_relaxed)) return;
  if (inside) ucp_cleanup(fabric->context);
  delete fabric;
}

// --- what UCX calls ------------------------------------------------------------------------------------------------

ucs_status_t message_arrived(void* argument, const void* header, size_t header_bytes, void* data, size_t bytes,
                             const ucp_am_recv_param_t* parameters) {
  auto* end = static_cast<GpuwireRdmaEnd*>(argument);
  bool waits = parameters->recv_attr & UCP_AM_RECV_ATTR_FLAG_RNDV;
  int taken = waits ? end->events->arrived(end->user, header, header_bytes, nullptr, bytes, data)
                    : end->events->arrived(end->user, header, header_bytes, data, bytes, nullptr);
  // Of what waits UCX keeps the descriptor until it is fetched.
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

ucs_status_t map(ucp_context_h context, void* memory, size_t bytes, ucp_mem_h& mapped) {
  ucp_mem_map_params_t parameters{};
  parameters.field_mask = UCP_MEM_MAP_PARAM_FIELD_ADDRESS | UCP_MEM_MAP_PARAM_FIELD_LENGTH;
  parameters.address = memory;
  parameters.length = bytes;
  return ucp_mem_map(context, &parameters, &mapped);
}

GpuwireRdmaEnd* make_end(GpuwireRdmaFabric* fabric, const GpuwireRdmaEvents* events, void* user, void* memory,
                         size_t memory_bytes, char* error, size_t room) {
  Inside inside;
  if (!inside) return nullptr;
  auto* end = new (std::nothrow) GpuwireRdmaEnd;
  if (!end) return nullptr;
  end->events = events;
  end->user = user;
  end->fabric = fabric;
  auto failed = [&](const char* what, ucs_status_t status) -> GpuwireRdmaEnd* {
    say(error, room, what, status);
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
  if (ucs_status_t status = map(fabric->context, memory, memory_bytes, end->memory))
    return failed(kNotRegistered, status);
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
  // UCX reads whole words of it.
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
    say(error, room, "no way to the other side", status);
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
                 uint64_t tag, ucp_mem_h memory, uint32_t flags) {
  Inside inside;
  if (!inside || !end->endpoint) return kGpuwireRdmaFailed;
  ucp_request_param_t parameters{};
  parameters.op_attr_mask = UCP_OP_ATTR_FIELD_CALLBACK | UCP_OP_ATTR_FIELD_USER_DATA | UCP_OP_ATTR_FIELD_FLAGS;
  parameters.cb.send = send_complete;
  parameters.user_data = end;
  parameters.flags = flags;
  if (bytes != 0) {
    parameters.op_attr_mask |= UCP_OP_ATTR_FIELD_MEMH;
    parameters.memh = memory;
  }
  int outcome = outcome_of(
      end, ucp_am_send_nbx(end->endpoint, kMessageId, header, header_bytes, bytes ? data : nullptr, bytes, &parameters),
      tag, bytes != 0);
  if (outcome == kGpuwireRdmaDone) end->stands = true;
  return outcome;
}

int send_at_once(GpuwireRdmaEnd* end, const void* header, size_t header_bytes, const void* data, size_t bytes,
                 uint64_t tag) {
  return send_message(end, header, header_bytes, data, bytes, tag, end->memory, 0);
}

int offer_message(GpuwireRdmaEnd* end, const void* header, size_t header_bytes, const void* data, size_t bytes,
                  uint64_t tag, GpuwireRdmaRegion* region) {
  return send_message(end, header, header_bytes, data, bytes, tag, region ? region->memory : end->memory,
                      bytes ? unsigned(UCP_AM_SEND_FLAG_RNDV) : 0u);
}

int fetch_message(GpuwireRdmaEnd* end, void* arrival, void* into, size_t bytes, uint64_t tag,
                  GpuwireRdmaRegion* region) {
  Inside inside;
  if (!inside || !end->endpoint) return kGpuwireRdmaFailed;
  ucp_request_param_t parameters{};
  parameters.op_attr_mask = UCP_OP_ATTR_FIELD_CALLBACK | UCP_OP_ATTR_FIELD_USER_DATA | UCP_OP_ATTR_FIELD_MEMH;
  parameters.cb.recv_am = fetch_complete;
  parameters.user_data = end;
  parameters.memh = region ? region->memory : end->memory;
  return outcome_of(end, ucp_am_recv_data_nbx(end->worker, arrival, into, bytes, &parameters), tag, true);
}

void drop_message(GpuwireRdmaEnd* end, void* arrival) {
  Inside inside;
  if (inside && !end->silent) ucp_am_data_release(end->worker, arrival);
}

unsigned progress_end(GpuwireRdmaEnd* end) {
  Inside inside;
  return inside && !end->silent ? ucp_worker_progress(end->worker) : 0;
}

int descriptor_of(GpuwireRdmaEnd* end) {
  Inside inside;
  int descriptor = -1;
  return inside && ucp_worker_get_efd(end->worker, &descriptor) == UCS_OK ? descriptor : -1;
}

int arm_end(GpuwireRdmaEnd* end) {
  Inside inside;
  return !inside || end->silent || ucp_worker_arm(end->worker) != UCS_ERR_BUSY;
}

// One look of those who wait. The peer may be on this machine, and need the core to let go.
void look(GpuwireRdmaEnd* end) {
  if (ucp_worker_progress(end->worker) == 0) sched_yield();
}

// Lets UCX go on until it has done this. False: it has not, in time.
bool finish(GpuwireRdmaEnd* end, ucs_status_ptr_t request, long until_ms) {
  if (!request || UCS_PTR_IS_ERR(request)) return true;
  Patience patience(until_ms);
  while (ucp_request_check_status(request) == UCS_INPROGRESS) {
    if (patience.over()) return false;
    look(end);
  }
  ucp_request_free(request);
  return true;
}

// UCX has no way to give up what is not over in time: it stays, with this object. The memory does not if nothing under
// way is about it, as of an end that has never been connected.
int leave_to_ucx(GpuwireRdmaEnd* end) {
  end->fabric->left_to_ucx.store(true, std::memory_order_relaxed);
  if (end->memory_under_way != 0 && !end->silent) return 0;
  if (end->memory) ucp_mem_unmap(end->fabric->context, end->memory);
  end->memory = nullptr;
  return 1;
}

// UCX ends the process by an assertion when what connects an endpoint is still queued at its close ("got REP message"),
// or at the end of its worker, which has to outlive what closed endpoints have left to do ("unsupported"). So both are
// waited for; messages are not, because a peer that is stuck would never take them. False: it is not over in time.
bool close_endpoint(GpuwireRdmaEnd* end, long until_ms) {
  if (!end->endpoint) return true;
  for (Patience patience(until_ms); !end->stands && !end->broken;) {
    if (patience.over()) return false;
    look(end);
  }
  ucp_request_param_t force{};
  force.op_attr_mask = UCP_OP_ATTR_FIELD_FLAGS;
  force.flags = UCP_EP_CLOSE_FLAG_FORCE;
  ucs_status_ptr_t closing = ucp_ep_close_nbx(end->endpoint, &force);
  end->endpoint = nullptr;
  return finish(end, closing, until_ms);
}

// A request that UCX has told of uses no memory any more. Of an endpoint that is closed by force it tells those that a
// device may be at only when what carried it has been flushed and destroyed; over shared memory that is when the peer,
// too, has taken in something, so a flush of the worker is no condition of its own: a peer that is gone would never let
// it end. UCX 1.13 forgets now and then to complete a request whose bytes came in pieces (seen over shared memory). It
// moves such bytes itself, but only when everything is flushed is it known that a device has none of them; nobody calls
// UCX for this end any more then.
int cut_end(GpuwireRdmaEnd* end) {
  Inside inside;
  if (!inside) return kGpuwireRdmaUncut;
  const long begun = now_ms();
  if (!close_endpoint(end, begun + kCloseMs)) return kGpuwireRdmaUncut;
  for (Patience patience(begun + kForgottenMs); end->memory_under_way != 0 && !patience.over();) look(end);
  if (end->memory_under_way == 0) return kGpuwireRdmaCut;
  ucp_request_param_t plain{};
  if (!finish(end, ucp_worker_flush_nbx(end->worker, &plain), begun + kCloseMs)) return kGpuwireRdmaUncut;
  end->silent = end->memory_under_way != 0;
  return end->silent ? kGpuwireRdmaCutSilently : kGpuwireRdmaCut;
}

int close_end(GpuwireRdmaEnd* end) {
  Inside inside;
  // At the end of the process UCX's state is not to be touched, and goes with it.
  if (!inside) return 0;
  const long until = now_ms() + kCloseMs;
  if (end->silent || !close_endpoint(end, until)) return leave_to_ucx(end);
  for (Patience patience(until); end->under_way != 0;) {
    if (patience.over()) return leave_to_ucx(end);
    look(end);
  }
  ucp_request_param_t plain{};
  if (end->worker && !finish(end, ucp_worker_flush_nbx(end->worker, &plain), until)) return leave_to_ucx(end);
  if (end->memory) ucp_mem_unmap(end->fabric->context, end->memory);
  if (end->worker) ucp_worker_destroy(end->worker);
  delete end;
  return 1;
}

// --- memory of others ----------------------------------------------------------------------------------------------

GpuwireRdmaRegion* register_region(GpuwireRdmaFabric* fabric, void* memory, size_t bytes, char* error, size_t room) {
  Inside inside;
  if (!inside) return nullptr;
  auto region = std::unique_ptr<GpuwireRdmaRegion>(new (std::nothrow) GpuwireRdmaRegion);
  if (!region) return nullptr;
  if (ucs_status_t status = map(fabric->context, memory, bytes, region->memory)) {
    say(error, room, kNotRegistered, status);
    return nullptr;
  }
  return region.release();
}

void forget_region(GpuwireRdmaFabric* fabric, GpuwireRdmaRegion* region) {
  Inside inside;
  // At the end of the process the registration goes with it.
  if (inside) ucp_mem_unmap(fabric->context, region->memory);
  delete region;
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
                                           send_at_once,
                                           offer_message,
                                           fetch_message,
                                           drop_message,
                                           progress_end,
                                           descriptor_of,
                                           arm_end,
                                           cut_end,
                                           close_end,
                                           register_region,
                                           forget_region};
  return &plugin;
}
