#include <doctest/doctest.h>

#include "server/broker/admission/tenants.hpp"

using namespace gpuwire;
using namespace gpuwire::server;

TEST_CASE("a tenant keeps its number when it goes from the configuration and comes back") {
  TenantDirectory tenants({{.name = "anna"}, {.name = "ben"}});
  scheduler::TenantId ben = tenants.find("ben")->id;
  tenants.replace({{.name = "carl"}, {.name = "anna"}});
  CHECK_FALSE(tenants.find("ben"));
  REQUIRE(tenants.find(ben));
  CHECK_FALSE(tenants.find(ben)->known);
  CHECK(tenants.find("carl")->id != ben);
  tenants.replace({{.name = "ben", .weight = 3}});
  REQUIRE(tenants.find("ben"));
  CHECK(tenants.find("ben")->id == ben);
  CHECK(tenants.find(ben)->settings.weight == 3);
}
