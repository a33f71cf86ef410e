// A user's name of a server.
#pragma once

#include <string>
#include <string_view>

#include <tl/expected.hpp>

#include "protocol/transport/tcp.hpp"

namespace gpuwire::client {

struct ServerAddress {
  enum class Kind : uint8_t {
    network,  // HOST:PORT: with TLS, but for this machine itself
    tls,      // tls://HOST:PORT
    tcp,      // tcp://HOST:PORT: without TLS, for every host
    local,    // unix:/PATH
  };
  Kind kind = Kind::network;
  transport::Endpoint endpoint;
  std::string path;

  // The host or the path, for messages.
  const std::string& host() const { return kind == Kind::local ? path : endpoint.host; }
};

// The error describes the mistake in the text.
tl::expected<ServerAddress, std::string> parse_server_address(std::string_view text);

}  // namespace gpuwire::client
