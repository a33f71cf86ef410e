// The changes of another configuration, in words, for the person who has just written it.
#pragma once

#include <string>
#include <vector>

#include "server/config/configuration.hpp"

namespace gpuwire::server {

// Tenants that the second one has no more.
std::vector<std::string> tenants_gone(const Configuration& before, const Configuration& after);
// "tenant dora is new; tenant carl is gone; anna has another class, memory"; empty: tenants are the same.
std::string changes_of_tenants(const Configuration& before, const Configuration& after);

}  // namespace gpuwire::server
