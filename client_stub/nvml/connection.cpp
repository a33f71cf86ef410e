#include "client_stub/nvml/connection.hpp"

#include <pthread.h>
#include <unistd.h>

#include <algorithm>
#include <mutex>
#include <new>

#include "client/session_sends.hpp"
#include "client_stub/driver/process/log_stderr.hpp"
#include "client_stub/session/environment.hpp"
#include "client_stub/session/no_notices.hpp"
#include "protocol/wire/limits.hpp"
#include "schema/session.capnp.h"

namespace gpuwire::nvml {
namespace {

constexpr size_t kKeptMax = 4096;

constinit DeviceObject g_devices[kDevicesMax];

struct State {
  std::mutex mutex;
  unsigned initialisations = 0;
  std::shared_ptr<Connection> connection;  // null in a child after fork(), until it is used there
  bool said = false;                       // the reason for a missing server has been printed
};

// Never destroyed: programs call from their last exit handlers.
State& state() {
  static State* const object = new State;
  return *object;
}

// A child must not use the parent's connection: the session has closed its descriptor in the child, and the object is
// abandoned, because a thread that does not exist in the child may hold a lock in it. Handles and the count of
// initialisations stay valid.
void in_child() {
  State& own = state();
  new (&own.mutex) std::mutex;
  if (own.connection) new (&own.connection) std::shared_ptr<Connection>;
}

// The program may empty its environment before its first call.
__attribute__((constructor)) void load() { client::keep_settings(); }

// Lock: held.
int connect(State& own) {
  const char* server = client::setting("GPUWIRE_SERVER");
  std::string error =
      "no server: set GPUWIRE_SERVER=HOST:PORT, or start the program with 'gpuwire run --server HOST:PORT -- PROGRAM'";
  std::unique_ptr<client::Session> session;
  static auto* const notices = new client::NoNotices;
  bool connected =
      server && *server &&
      client::Session::connect(server, *notices, session, error, client::SessionKind::management) == CUDA_SUCCESS;
  if (connected && !session->facts().knows(uint32_t(wire::SessionOrdinal::management_query))) {
    error = std::string(server) + ": the server is too old to answer NVML";
    connected = false;
  }
  if (!connected) {
    if (!own.said) client::log_stderr(error);
    own.said = true;
    return kDriverNotLoaded;
  }
  own.connection = std::make_shared<Connection>(std::move(session));
  return kSuccess;
}

template <class Body>
int guarded(Body&& body) noexcept {
  try {
    return body();
  } catch (...) {
    return kMemory;
  }
}

}  // namespace

nvmlDevice device_handle(uint32_t index) { return reinterpret_cast<nvmlDevice>(&g_devices[index]); }

bool device_index(nvmlDevice device, uint32_t& index) {
  auto address = reinterpret_cast<uintptr_t>(device), first = reinterpret_cast<uintptr_t>(&g_devices[0]);
  if (address < first || address >= first + sizeof g_devices || (address - first) % sizeof(DeviceObject)) return false;
  index = uint32_t((address - first) / sizeof(DeviceObject));
  return true;
}

Connection::Connection(std::unique_ptr<client::Session> session) : session_(std::move(session)), process_(getpid()) {}

Connection::~Connection() {
  if (process_ != getpid()) session_.release();
}

int Connection::ask(uint32_t function, const std::string& arguments, std::string& values) {
  int status = kUnknown;
  CUresult result = client::send::call_management_query(
      *session_, 0, {.function = function, .arguments = arguments}, [&](schema::ManagementReply::Reader reply) {
        auto bytes = reply.getValues();
        values.assign(reinterpret_cast<const char*>(bytes.begin()), bytes.size());
        status = reply.getStatus();
      });
  return result ? kGpuIsLost : status;
}

int Connection::ask_once(uint32_t function, const std::string& arguments, std::string& values) {
  std::string key(reinterpret_cast<const char*>(&function), sizeof function);
  key += arguments;
  {
    MutexLock lock(kept_mutex_);
    if (auto found = kept_.find(key); found != kept_.end()) {
      values = found->second;
      return kSuccess;
    }
  }
  int status = ask(function, arguments, values);
  if (status != kSuccess) return status;
  MutexLock lock(kept_mutex_);
  if (kept_.size() < kKeptMax) kept_.emplace(std::move(key), values);
  return status;
}

int initialise() {
  static const int registered = pthread_atfork(nullptr, nullptr, in_child);
  (void)registered;
  return guarded([] {
    State& own = state();
    std::lock_guard lock(own.mutex);
    // A lost session is replaced, because the server may be back.
    if (own.connection && own.connection->lost()) own.connection.reset();
    if (!own.connection) {
      if (int error = connect(own)) return error;
    }
    ++own.initialisations;
    return int(kSuccess);
  });
}

int shut_down() {
  State& own = state();
  std::shared_ptr<Connection> last;  // destroyed after the lock is released
  std::lock_guard lock(own.mutex);
  if (own.initialisations == 0) return kUninitialized;
  if (--own.initialisations == 0) last = std::move(own.connection);
  return kSuccess;
}

std::shared_ptr<Connection> connection(int& status) {
  State& own = state();
  std::lock_guard lock(own.mutex);
  status = own.initialisations == 0 ? kUninitialized : kSuccess;
  if (status == kSuccess && !own.connection) status = guarded([&] { return connect(own); });
  return own.connection;
}

}  // namespace gpuwire::nvml
