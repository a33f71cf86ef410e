// Unix stream sockets: between processes of one host, and pairs for tests.
#pragma once

#include <memory>
#include <string>
#include <utility>

#include <tl/expected.hpp>

#include "protocol/transport/transport.hpp"

namespace gpuwire::transport {

using TransportPair = std::pair<std::unique_ptr<Transport>, std::unique_ptr<Transport>>;

// Creates two connected ends in this process.
tl::expected<TransportPair, std::string> unix_pair();
// Connects to a listening socket in the file system.
tl::expected<std::unique_ptr<Transport>, std::string> connect_unix(const std::string& path);
// Connects to the socket `name` in an open folder of the caller, whatever this process's root folder is.
tl::expected<std::unique_ptr<Transport>, std::string> connect_unix_in(int folder, const std::string& name);
// Returns a listening descriptor, close-on-exec and non-blocking, which the caller owns. Precondition: the path does
// not exist.
tl::expected<int, std::string> listen_unix(const std::string& path);

}  // namespace gpuwire::transport
