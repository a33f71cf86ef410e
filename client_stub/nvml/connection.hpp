// The library's session with the server: one for the process, from the first nvmlInit to the nvmlShutdown that matches
// it.
#pragma once

#include <cstdint>
#include <memory>
#include <mutex>
#include <string>
#include <unordered_map>
#include <vector>

#include "client_stub/session/session.hpp"
#include "protocol/nvml/abi.hpp"

namespace gpuwire::nvml {

// The target of a program's nvmlDevice. Never removed, because a program may keep handles beyond nvmlShutdown, and
// across fork.
struct DeviceObject {
  uint32_t unused = 0;
};

// A server knows no more; handles beyond it cannot be named.
inline constexpr uint32_t kDevicesMax = 256;
nvmlDevice device_handle(uint32_t index);
// False: not a handle that device_handle() gives.
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
  // Sends a query and waits. The status is the server's, or kGpuIsLost when there is no session any more; `values` is
  // set only by the server.
  int ask(uint32_t function, const std::string& arguments, std::string& values);
  // As ask(), but a success is kept, and the server is not asked for the same again.
  int ask_once(uint32_t function, const std::string& arguments, std::string& values);

 private:
  std::unique_ptr<client::Session> session_;
  const int process_;
  std::mutex kept_mutex_;
  std::unordered_map<std::string, std::string> kept_;  // function and arguments -> values; at most kKeptMax
};

// Counts an initialisation; the first connects. kDriverNotLoaded: no server; the reason was printed on stderr once.
int initialise();
int shut_down();
// Null when the library is not initialised (kUninitialized) or, in a child after fork(), cannot connect anew.
std::shared_ptr<Connection> connection(int& status);

}  // namespace gpuwire::nvml
