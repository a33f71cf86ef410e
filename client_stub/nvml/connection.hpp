// The process's session with the server, from the first nvmlInit to the matching nvmlShutdown.
#pragma once

#include <cstdint>
#include <memory>
#include <string>
#include <unordered_map>
#include <vector>

#include "client_stub/session/session.hpp"
#include "protocol/nvml/abi.hpp"
#include "protocol/threads/mutex.hpp"

namespace gpuwire::nvml {

// The target of a program's nvmlDevice. Never removed, because a program may use handles after nvmlShutdown and after
// fork().
struct DeviceObject {
  uint32_t unused = 0;
};

// A server has at most this number of devices; handles for more cannot exist.
inline constexpr uint32_t kDevicesMax = 256;
nvmlDevice device_handle(uint32_t index);
// Returns false if device_handle() has not returned this handle.
bool device_index(nvmlDevice device, uint32_t& index);

// Any thread.
class Connection {
 public:
  explicit Connection(std::unique_ptr<client::Session> session);
  ~Connection();
  Connection(const Connection&) = delete;
  Connection& operator=(const Connection&) = delete;

  const client::ServerFacts& facts() const { return session_->facts(); }
  bool lost() const { return session_->state() != CUDA_SUCCESS; }
  // Sends a query and waits. Returns the server's status, or kGpuIsLost if the session is lost; only the server sets
  // `values`.
  int ask(uint32_t function, const std::string& arguments, std::string& values);
  // As ask(), but caches a successful answer.
  int ask_once(uint32_t function, const std::string& arguments, std::string& values);

 private:
  std::unique_ptr<client::Session> session_;
  const int process_;
  Mutex kept_mutex_;
  // The cached values by function and arguments; at most kKeptMax.
  std::unordered_map<std::string, std::string> kept_ GUARDED_BY(kept_mutex_);
};

// Counts an initialisation; the first connects. kDriverNotLoaded: no server; the reason was printed on stderr once.
int initialise();
int shut_down();
// Returns null if the library is not initialised (kUninitialized) or, in a child after fork(), cannot connect.
std::shared_ptr<Connection> connection(int& status);

}  // namespace gpuwire::nvml
