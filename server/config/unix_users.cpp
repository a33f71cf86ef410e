#include "server/config/unix_users.hpp"

#include <pwd.h>

#include <array>
#include <charconv>
#include <optional>

#include <fmt/format.h>

namespace gpuwire::server {
namespace {

// Parses a user's name on this machine, or a number.
std::optional<uid_t> user_of(const std::string& text) {
  uid_t number = 0;
  auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), number);
  if (error == std::errc() && end == text.data() + text.size()) return number;
  std::array<char, 16'384> storage;
  passwd entry{};
  passwd* found = nullptr;
  if (::getpwnam_r(text.c_str(), &entry, storage.data(), storage.size(), &found) != 0 || !found) return std::nullopt;
  return entry.pw_uid;
}

}  // namespace

UnixUsers unix_users(const Configuration& configuration) {
  UnixUsers users;
  for (const TenantConfiguration& tenant : configuration.tenants) {
    for (const std::string& name : tenant.unix_users) {
      auto user = user_of(name);
      if (!user)
        users.mistakes.push_back(
            fmt::format("unix_users of [tenants.{}]: this machine has no user \"{}\"", tenant.name, name));
      else if (!users.tenants.emplace(*user, tenant.name).second)
        users.mistakes.push_back(fmt::format("unix_users of [tenants.{}]: user \"{}\" is tenant {} already",
                                             tenant.name, name, users.tenants[*user]));
      else users.names.emplace(*user, name);
    }
  }
  return users;
}

}  // namespace gpuwire::server
