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
  // As the configuration has them: the users of the tenant.
  std::map<uid_t, std::string> names;
  // A line for each unknown user and each user of two tenants.
  std::vector<std::string> mistakes;
};

// Queries the machine's user database, which may block.
UnixUsers unix_users(const Configuration& configuration);

}  // namespace gpuwire::server
