#include "server/config/configuration_changes.hpp"

#include <doctest/doctest.h>

using namespace gpuwire::server;

namespace {

Configuration with(std::vector<TenantConfiguration> tenants) {
  Configuration configuration;
  configuration.tenants = std::move(tenants);
  return configuration;
}

}  // namespace

TEST_CASE("the changes of a configuration name the tenants and their keys") {
  const Configuration before = with({{.name = "anna"}, {.name = "ben"}, {.name = "carl"}});
  CHECK(changes_of_tenants(before, before) == "");
  const Configuration after =
      with({{.name = "anna"}, {.name = "ben", .weight = 2, .memory = {.limit_bytes = 1}}, {.name = "dora"}});
  CHECK(changes_of_tenants(before, after) == "tenant dora is new; tenant carl is gone; ben has another weight, memory");
  CHECK(tenants_gone(before, after) == std::vector<std::string>{"carl"});
}
