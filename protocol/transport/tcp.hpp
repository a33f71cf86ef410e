// TCP: connecting and listening. What comes out is a transport over the socket (stream.hpp).
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

// HOST, HOST:PORT, [IPV6]:PORT. The error says what is wrong with the text.
tl::expected<Endpoint, std::string> parse_endpoint(std::string_view text);

// The addresses of the name, in digits, in the system's order; at least one. The resolver's own limits of time apply.
// The error is a cause without the name.
tl::expected<std::vector<Endpoint>, std::string> resolve(const Endpoint& endpoint);

// Resolves and connects, trying each address of the name in turn, at most `timeout` in all (the resolver's own limits
// apply to the lookup), of which each address has the same part, and what the ones before it have left of theirs. The
// error is a cause, without host and port: "unknown host", "connection refused (is a gpuwire server running there?)",
// "no answer within 5 s"...
tl::expected<std::unique_ptr<Transport>, std::string> connect_tcp(const Endpoint& endpoint, Nanoseconds timeout);

// The same with addresses in digits, one of which is to take the connection. Those before it did not.
struct ConnectedFirst {
  std::unique_ptr<Transport> transport;
  size_t index = 0;  // of its address
};
tl::expected<ConnectedFirst, std::string> connect_first(const std::vector<Endpoint>& addresses, Nanoseconds timeout);

class TcpListener {
 public:
  // Port 0: the system picks one. Binds the first address of the name.
  static tl::expected<std::unique_ptr<TcpListener>, std::string> listen(const Endpoint& endpoint);
  virtual ~TcpListener() = default;

  // The address that is listened on, with the port that was picked.
  virtual Endpoint endpoint() const = 0;
  // Only reachable from this machine?
  virtual bool loopback() const = 0;
  // For poll(): readable when a connection can be accepted.
  virtual int descriptor() const noexcept = 0;

  struct Accepted {
    int descriptor = -1;  // the caller's; adopt_stream() makes a transport of it. -1: nothing to accept just now
    std::string peer;     // "192.0.2.7:41234"
    int error = 0;        // errno of a failed accept: EMFILE and the like, the listener goes on
  };
  // Does not wait.
  virtual Accepted accept() noexcept = 0;
};

}  // namespace gpuwire::transport
