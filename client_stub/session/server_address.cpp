#include "client_stub/session/server_address.hpp"

#include <utility>

#include <fmt/format.h>

namespace gpuwire::client {

tl::expected<ServerAddress, std::string> parse_server_address(std::string_view text) {
  ServerAddress address;
  constexpr std::string_view kUnix = "unix:";
  if (text.starts_with(kUnix)) {
    address.kind = ServerAddress::Kind::local;
    address.path = text.substr(kUnix.size());
    if (!address.path.starts_with('/')) return tl::unexpected(std::string("expected unix:/PATH"));
    return address;
  }
  for (auto [scheme, kind] : {std::pair{std::string_view("tls://"), ServerAddress::Kind::tls},
                              {std::string_view("tcp://"), ServerAddress::Kind::tcp}}) {
    if (!text.starts_with(scheme)) continue;
    address.kind = kind;
    text.remove_prefix(scheme.size());
  }
  if (size_t mark = text.find("://"); mark != text.npos)
    return tl::unexpected(
        fmt::format("{} is unknown (tls://HOST:PORT, tcp://HOST:PORT or unix:/PATH)", text.substr(0, mark + 3)));
  auto endpoint = transport::parse_endpoint(text);
  if (!endpoint) return tl::unexpected("not HOST:PORT: " + endpoint.error());
  address.endpoint = std::move(*endpoint);
  return address;
}

}  // namespace gpuwire::client
