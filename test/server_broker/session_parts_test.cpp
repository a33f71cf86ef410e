#include <doctest/doctest.h>
#include <fcntl.h>

#include "server/broker/session_order.hpp"
#include "server/broker/tenants.hpp"

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

TEST_CASE("descriptors of an order are found at their places, and those left out are none") {
  Handoff handoff;
  auto null = [] { return OwnedDescriptor(::open("/dev/zero", O_RDONLY | O_CLOEXEC)); };
  REQUIRE(attach(handoff, OrderDescriptor::tenant_page, null()));
  REQUIRE(attach(handoff, OrderDescriptor::client, null()));
  int page = handoff.more.back().get();
  CHECK(handoff.more.size() == 3);
  CHECK_FALSE(take(handoff, OrderDescriptor::session_page));
  CHECK_FALSE(take(handoff, OrderDescriptor::doorbell));
  CHECK(take(handoff, OrderDescriptor::tenant_page).get() == page);
  CHECK(take(handoff, OrderDescriptor::client));
  CHECK_FALSE(take(handoff, OrderDescriptor::client));
}
