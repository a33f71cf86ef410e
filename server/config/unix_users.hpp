// Which users of this machine are which tenants: `unix_users` of the configuration.
#pragma once

#include <sys/types.h>

#include <map>
#include <string>
#include <vector>

#include "server/config/configuration.hpp"

namespace gpuwire::server {

struct UnixUsers {
  std::map<uid_t, std::string> tenants;
  std::map<uid_t, std::string> names;  // as the configuration has them: the users of the tenant
  std::vector<std::string> mistakes;   // a line each: users that this machine does not have, or that are two tenants
};

// Asks the machine's user database, which may take as long as that does.
UnixUsers unix_users(const Configuration& configuration);

}  // namespace gpuwire::server
