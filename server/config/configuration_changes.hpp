// Describes the differences of two configurations in words, for the author of the new one.
#pragma once

#include <string>
#include <vector>

#include "server/config/configuration.hpp"

namespace gpuwire::server {

// Returns the tenants that the second configuration lacks.
std::vector<std::string> tenants_gone(const Configuration& before, const Configuration& after);
// Returns for example "tenant dora is new; tenant carl is gone; anna has another class, memory"; empty: the tenants are
// the same.
std::string changes_of_tenants(const Configuration& before, const Configuration& after);

}  // namespace gpuwire::server
