#include "server/config/listen_address.hpp"

#include <charconv>

#include <boost/asio/io_context.hpp>
#include <fmt/format.h>
#include <sys/un.h>

namespace gpuwire::server {

std::string text_of(const boost::asio::ip::tcp::endpoint& endpoint) {
  std::string address = endpoint.address().to_string();
  return endpoint.address().is_v6() ? fmt::format("[{}]:{}", address, endpoint.port())
                                    : fmt::format("{}:{}", address, endpoint.port());
}

std::string text_of(const ListenAddress& address) {
  return address.tcp ? text_of(*address.tcp) : "unix:" + address.unix_path;
}

tl::expected<boost::asio::ip::tcp::endpoint, std::string> parse_listen_address(std::string_view text) {
  namespace ip = boost::asio::ip;
  auto wrong = [&](std::string_view why) {
    return tl::unexpected(fmt::format("\"{}\" is not HOST:PORT: {}", text, why));
  };
  size_t colon = text.rfind(':');
  if (colon == std::string_view::npos) return wrong("no port");
  std::string_view host = text.substr(0, colon), digits = text.substr(colon + 1);
  uint16_t port = 0;
  auto [end, error] = std::from_chars(digits.data(), digits.data() + digits.size(), port);
  if (error != std::errc() || end != digits.data() + digits.size())
    return wrong("the port must be a number from 0 to 65535");
  if (host.size() >= 2 && host.front() == '[' && host.back() == ']') {
    host = host.substr(1, host.size() - 2);
  } else if (host.find(':') != std::string_view::npos) {
    return wrong("an IPv6 address must be in brackets");
  }
  if (host.empty()) return wrong("no host");
  boost::system::error_code failed;
  ip::address address = ip::make_address(std::string(host), failed);
  if (!failed) return ip::tcp::endpoint(address, port);
  boost::asio::io_context io;
  auto found =
      ip::tcp::resolver(io).resolve(std::string(host), std::string(digits), ip::resolver_base::passive, failed);
  if (failed || found.empty()) return wrong(failed ? failed.message() : "the host has no address");
  return found.begin()->endpoint();
}

tl::expected<ListenAddress, std::string> parse_listen(std::string_view text) {
  constexpr std::string_view kUnix = "unix:";
  if (text.starts_with(kUnix)) {
    std::string_view path = text.substr(kUnix.size());
    if (path.empty() || path.size() >= sizeof(sockaddr_un::sun_path))
      return tl::unexpected(
          fmt::format("\"{}\" is not unix:PATH with at most {} characters", text, sizeof(sockaddr_un::sun_path) - 1));
    return ListenAddress{std::nullopt, std::string(path)};
  }
  auto endpoint = parse_listen_address(text);
  if (!endpoint) return tl::unexpected(endpoint.error());
  return ListenAddress{*endpoint, {}};
}

bool is_reachable_from_elsewhere(const ListenAddress& address) {
  return address.tcp && !address.tcp->address().is_loopback();
}

}  // namespace gpuwire::server
