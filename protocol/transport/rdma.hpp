// A connection whose bytes travel by RDMA, beside the TCP connection over which it was negotiated. The TCP connection
// authenticates the peer and reports the peer's end. The library that moves the messages is loaded by name
// (rdma_plugin.hpp).
#pragma once

#include <memory>
#include <string>
#include <string_view>
#include <utility>

#include <tl/expected.hpp>

#include "protocol/transport/rdma_message.hpp"
#include "protocol/transport/transport.hpp"

struct GpuwireRdmaPlugin;
struct GpuwireRdmaFabric;

namespace gpuwire::transport {

// The open RDMA devices of a process. Outlives its ends. Thread: any.
class RdmaFabric {
 public:
  // Loads the library `plugin` (a path, or a name that the dynamic linker searches for) and opens the devices.
  // `confined`: the process is about to lose the right to access other processes' memory. The library is never
  // unloaded. The error is one line that says why there is no RDMA.
  static tl::expected<std::shared_ptr<RdmaFabric>, std::string> open(const std::string& plugin, bool confined = false);
  ~RdmaFabric();
  RdmaFabric(const RdmaFabric&) = delete;
  RdmaFabric& operator=(const RdmaFabric&) = delete;

  const GpuwireRdmaPlugin& plugin() const { return plugin_; }
  GpuwireRdmaFabric* handle() const { return handle_; }

 private:
  RdmaFabric(const GpuwireRdmaPlugin& plugin, GpuwireRdmaFabric* handle) : plugin_(plugin), handle_(handle) {}

  const GpuwireRdmaPlugin& plugin_;
  GpuwireRdmaFabric* const handle_;
};

// One end of a connection, from its creation until it carries a session. A thread of its own drives the operations in
// flight.
class RdmaEnd {
 public:
  static tl::expected<std::unique_ptr<RdmaEnd>, std::string> make(std::shared_ptr<RdmaFabric> fabric);
  virtual ~RdmaEnd() = default;

  // Returns the address for the peer, which is sent over a connection that no third party can change or read.
  virtual const std::string& address() const = 0;
  virtual const rdma::Token& token() const = 0;

  // Greets the peer. The greeting shows the peer that its address has arrived here. The error: there is no route to the
  // peer.
  virtual tl::expected<void, std::string> greet(std::string_view address, const rdma::Token& token) = 0;
  // Greets the peer as soon as the peer has sent its greeting.
  virtual void greet_back(std::string_view address, const rdma::Token& token) = 0;
  // Waits until both ends have greeted each other. Returns false if they have not within `timeout`, or if the end has
  // failed; see failure().
  virtual bool await_greeting(Nanoseconds timeout) = 0;
  virtual std::string failure() const = 0;
  // Returns the number of messages that had a wrong token or none.
  virtual uint64_t refused() const = 0;

  // Returns a transport whose streams travel over `end`. Over `beside` only its end is awaited.
  static std::unique_ptr<Transport> carry(std::unique_ptr<RdmaEnd> end, std::unique_ptr<Transport> beside);
};

}  // namespace gpuwire::transport
