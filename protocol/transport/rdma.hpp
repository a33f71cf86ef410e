// A connection whose bytes go by RDMA, with the TCP connection beside it that brought its ends together: the TCP
// connection authenticates the peer, and reports its end. The library that moves messages is loaded by name
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

// A process's open RDMA devices. Outlives its ends. Any thread.
class RdmaFabric {
 public:
  // `plugin`: the library's path, or its name, then it is looked for as any library is. `confined`: the process is
  // about to lose the right to touch others' memory. The library stays loaded. The error: why there is no RDMA, one
  // line.
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

// One end, from its creation until it carries a session. A thread of its own drives the operations in flight.
class RdmaEnd {
 public:
  static tl::expected<std::unique_ptr<RdmaEnd>, std::string> make(std::shared_ptr<RdmaFabric> fabric);
  virtual ~RdmaEnd() = default;

  // For the peer, over a connection that is nobody else's.
  virtual const std::string& address() const = 0;
  virtual const rdma::Token& token() const = 0;

  // Greets the peer, which shows that the peer's address has arrived here. The error: there is no route to the peer.
  virtual tl::expected<void, std::string> greet(std::string_view address, const rdma::Token& token) = 0;
  // The same as soon as the peer has greeted.
  virtual void greet_back(std::string_view address, const rdma::Token& token) = 0;
  // Both have greeted each other. False: not within `timeout`, or it has failed: failure().
  virtual bool await_greeting(Nanoseconds timeout) = 0;
  virtual std::string failure() const = 0;
  // Messages that had the wrong token, or none.
  virtual uint64_t refused() const = 0;

  // The streams go by `end` from here on; over `beside` nothing is said any more but its end.
  static std::unique_ptr<Transport> carry(std::unique_ptr<RdmaEnd> end, std::unique_ptr<Transport> beside);
};

}  // namespace gpuwire::transport
