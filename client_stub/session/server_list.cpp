#include "client_stub/session/server_list.hpp"

#include <algorithm>

#include <fmt/format.h>

#include "client_stub/session/server_address.hpp"

namespace gpuwire::client {

tl::expected<std::vector<std::string>, std::string> parse_server_list(std::string_view text) {
  std::vector<std::string> servers;
  for (bool more = true; more;) {
    const size_t comma = std::min(text.find(','), text.size());
    std::string_view name = text.substr(0, comma);
    more = comma < text.size();
    text.remove_prefix(more ? comma + 1 : comma);
    while (name.starts_with(' ')) name.remove_prefix(1);
    while (name.ends_with(' ')) name.remove_suffix(1);
    if (auto address = parse_server_address(name); !address)
      return tl::unexpected(fmt::format("{}: {}", name, address.error()));
    if (std::find(servers.begin(), servers.end(), name) != servers.end())
      return tl::unexpected(fmt::format("{}: the server is named twice", name));
    if (servers.size() == kServersMax)
      return tl::unexpected(fmt::format("{} servers can be named at most", kServersMax));
    servers.emplace_back(name);
  }
  return servers;
}

}  // namespace gpuwire::client
