// Unix stream sockets: between processes of one host, and pairs for tests.
#pragma once

#include <memory>
#include <string>
#include <utility>

#include <tl/expected.hpp>

#include "protocol/transport/transport.hpp"

namespace gpuwire::transport {

using TransportPair = std::pair<std::unique_ptr<Transport>, std::unique_ptr<Transport>>;

// Two connected ends in this process. Error: why not.
tl::expected<TransportPair, std::string> unix_pair();
// Connects to a listening socket in the file system.
tl::expected<std::unique_ptr<Transport>, std::string> connect_unix(const std::string& path);
// The same by the socket's name in a folder that the caller has open, wherever this process's root folder is.
tl::expected<std::unique_ptr<Transport>, std::string> connect_unix_in(int folder, const std::string& name);
// A listening descriptor, close-on-exec and non-blocking, the caller's; the path must not exist yet.
tl::expected<int, std::string> listen_unix(const std::string& path);

}  // namespace gpuwire::transport
