#include "server/config/unix_users.hpp"

#include <doctest/doctest.h>

using namespace gpuwire::server;

namespace {

Configuration with(std::vector<std::string> annas, std::vector<std::string> bens) {
  Configuration configuration;
  configuration.tenants.resize(2);
  configuration.tenants[0].name = "anna";
  configuration.tenants[0].unix_users = std::move(annas);
  configuration.tenants[1].name = "ben";
  configuration.tenants[1].unix_users = std::move(bens);
  return configuration;
}

}  // namespace

TEST_CASE("users are known by name and by number") {
  const UnixUsers users = unix_users(with({"root"}, {"4242"}));
  CHECK(users.mistakes.empty());
  CHECK(users.tenants == std::map<uid_t, std::string>{{0, "anna"}, {4242, "ben"}});
}

TEST_CASE("a user that this machine does not have is told, and the others are known") {
  const UnixUsers users = unix_users(with({"no such user", "4242"}, {}));
  CHECK(users.mistakes ==
        std::vector<std::string>{"unix_users of [tenants.anna]: this machine has no user \"no such user\""});
  CHECK(users.tenants == std::map<uid_t, std::string>{{4242, "anna"}});
}

TEST_CASE("a user that two tenants name, once by name and once by number, is the first one's, and the other is told") {
  const UnixUsers users = unix_users(with({"root"}, {"0"}));
  CHECK(users.mistakes == std::vector<std::string>{"unix_users of [tenants.ben]: user \"0\" is tenant anna already"});
  CHECK(users.tenants == std::map<uid_t, std::string>{{0, "anna"}});
}
