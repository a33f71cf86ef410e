#include <doctest/doctest.h>
#include <fcntl.h>

#include "server/ipc/session_spec.hpp"
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

TEST_CASE("descriptors of an order are found at their places, and those left out are none") {
  IpcMessage message;
  auto null = [] { return OwnedDescriptor(::open("/dev/zero", O_RDONLY | O_CLOEXEC)); };
  REQUIRE(attach(message, SpecDescriptor::tenant_page, null()));
  REQUIRE(attach(message, SpecDescriptor::client, null()));
  int page = message.more.back().get();
  CHECK(message.more.size() == 3);
  CHECK_FALSE(take(message, SpecDescriptor::session_page));
  CHECK_FALSE(take(message, SpecDescriptor::doorbell));
  CHECK(take(message, SpecDescriptor::tenant_page).get() == page);
  CHECK(take(message, SpecDescriptor::client));
  CHECK_FALSE(take(message, SpecDescriptor::client));
}
