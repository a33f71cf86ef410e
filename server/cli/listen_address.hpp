// Where the server listens, as the user writes it.
#pragma once

#include <string>
#include <string_view>

#include <boost/asio/ip/tcp.hpp>
#include <tl/expected.hpp>

namespace gpuwire::server {

// "127.0.0.1:9750", "[::1]:0", "localhost:9750" (resolved; its first address counts). The error says what is wrong with it.
tl::expected<boost::asio::ip::tcp::endpoint, std::string> parse_listen_address(std::string_view text);

}  // namespace gpuwire::server
