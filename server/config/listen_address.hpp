// The addresses on which the server listens, as the user writes them.
#pragma once

#include <optional>
#include <string>
#include <string_view>

#include <boost/asio/ip/tcp.hpp>
#include <tl/expected.hpp>

namespace gpuwire::server {

// Exactly one of the members is set.
struct ListenAddress {
  std::optional<boost::asio::ip::tcp::endpoint> tcp;
  std::string unix_path;
};
// "127.0.0.1:9750", "[::1]:9750", "unix:/run/gpuwire/socket".
std::string text_of(const ListenAddress& address);
std::string text_of(const boost::asio::ip::tcp::endpoint& endpoint);

// Parses "127.0.0.1:9750", "[::1]:0", "localhost:9750" (resolved to its first address). The error describes the
// mistake.
tl::expected<boost::asio::ip::tcp::endpoint, std::string> parse_listen_address(std::string_view text);

// The same, or "unix:PATH".
tl::expected<ListenAddress, std::string> parse_listen(std::string_view text);
// Returns whether callers on other machines can reach the address.
bool is_reachable_from_elsewhere(const ListenAddress& address);

}  // namespace gpuwire::server
