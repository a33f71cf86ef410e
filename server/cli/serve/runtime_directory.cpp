#include "server/cli/serve/runtime_directory.hpp"

#include <algorithm>
#include <string>

#include "server/budget/budget_file.hpp"
#include "server/config/listen_address.hpp"
#include "server/control/client/socket_path.hpp"

namespace gpuwire::server {

namespace {

// Returns the first fixed address, as a part of a file's name; empty: there is none.
std::string name_of(const std::vector<ListenAddress>& listen) {
  auto lasting = std::find_if(listen.begin(), listen.end(),
                              [](const ListenAddress& one) { return !one.tcp || one.tcp->port() != 0; });
  if (lasting == listen.end()) return {};
  std::string name = text_of(*lasting);
  std::replace(name.begin(), name.end(), '/', '-');
  return name;
}

}  // namespace

tl::expected<std::filesystem::path, std::string> default_runtime_directory(const std::vector<ListenAddress>& listen) {
  const std::string name = name_of(listen);
  if (name.empty()) return {};
  return own_runtime_folder().map([&](const std::filesystem::path& folder) { return folder / ("serve-" + name); });
}

std::filesystem::path default_drain_file(const Configuration& configuration, const std::vector<ListenAddress>& listen) {
  const std::string name = name_of(listen);
  const std::filesystem::path& budgets = configuration.budget_file;
  if (name.empty()) return {};
  return (budgets.empty() ? default_budget_file() : budgets).parent_path() / ("drained-" + name);
}

}  // namespace gpuwire::server
