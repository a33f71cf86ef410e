// Maps users of this machine to tenants: `unix_users` of the configuration.
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
  std::vector<std::string> mistakes;   // a line for each unknown user and each user of two tenants
};

// Queries the machine's user database, which may block.
UnixUsers unix_users(const Configuration& configuration);

}  // namespace gpuwire::server
