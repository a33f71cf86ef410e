#include "server/cli/serve/runtime_directory.hpp"

#include <algorithm>
#include <string>

#include "server/config/listen_address.hpp"
#include "server/control/client/socket_path.hpp"

namespace gpuwire::server {

tl::expected<std::filesystem::path, std::string> default_runtime_directory(const std::vector<ListenAddress>& listen) {
  auto lasting = std::find_if(listen.begin(), listen.end(),
                              [](const ListenAddress& one) { return !one.tcp || one.tcp->port() != 0; });
  if (lasting == listen.end()) return {};
  std::string name = "serve-" + text_of(*lasting);
  std::replace(name.begin(), name.end(), '/', '-');
  return own_runtime_folder().map([&](const std::filesystem::path& folder) { return folder / name; });
}

}  // namespace gpuwire::server
