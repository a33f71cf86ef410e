// TCP: connecting and listening. Both return sockets for a transport (stream.hpp).
#pragma once

#include <cstdint>
#include <memory>
#include <string>
#include <string_view>
#include <vector>

#include <tl/expected.hpp>

#include "protocol/transport/transport.hpp"

namespace gpuwire::transport {

struct Endpoint {
  std::string host;
  uint16_t port = 0;
  bool operator==(const Endpoint&) const = default;
};

inline constexpr uint16_t kDefaultPort = 9750;

// Parses HOST, HOST:PORT or [IPV6]:PORT. The error says what is wrong with the text.
tl::expected<Endpoint, std::string> parse_endpoint(std::string_view text);

// Returns the name's addresses, in digits and in the system's order; at least one. The resolver's own time limits
// apply. The error is a cause without the name.
tl::expected<std::vector<Endpoint>, std::string> resolve(const Endpoint& endpoint);

// Resolves the name and tries to connect to each of its addresses in turn, within `timeout` in all; the resolver's own
// limits apply to the lookup. Each address gets an equal share of the time, and the time that earlier addresses have
// not used. The error is a cause, without host and port: "unknown host", "connection refused (is a gpuwire server
// running there?)", "no answer within 5 s".
tl::expected<std::unique_ptr<Transport>, std::string> connect_tcp(const Endpoint& endpoint, Nanoseconds timeout);

// The same for addresses in digits. `index` is that of the address that accepted; those before it did not.
struct ConnectedFirst {
  std::unique_ptr<Transport> transport;
  // The index of the address that accepted.
  size_t index = 0;
};
tl::expected<ConnectedFirst, std::string> connect_first(const std::vector<Endpoint>& addresses, Nanoseconds timeout);

class TcpListener {
 public:
  // Binds the first address of the name. Port 0: the kernel chooses the port.
  static tl::expected<std::unique_ptr<TcpListener>, std::string> listen(const Endpoint& endpoint);
  virtual ~TcpListener() = default;

  // Returns the listening address, with the port that the kernel chose.
  virtual Endpoint endpoint() const = 0;
  // Returns true if only this machine can reach the address.
  virtual bool loopback() const = 0;
  // The descriptor for poll(): readable when a connection can be accepted.
  virtual int descriptor() const noexcept = 0;

  struct Accepted {
    // The caller owns it, and adopt_stream() makes a transport of it. -1: there is no connection to accept now.
    int descriptor = -1;
    // "192.0.2.7:41234".
    std::string peer;
    // errno of a failed accept, such as EMFILE. The listener continues.
    int error = 0;
  };
  // Does not wait.
  virtual Accepted accept() noexcept = 0;
};

}  // namespace gpuwire::transport
