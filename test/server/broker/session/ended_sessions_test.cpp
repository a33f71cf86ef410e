#include <string>

#include <doctest/doctest.h>

#include "server/broker/session/ended_sessions.hpp"

using namespace gpuwire::server;

namespace {

EndedSessions::WireId id(uint8_t number) {
  EndedSessions::WireId id{};
  id.fill(number);
  return id;
}

std::string shown(uint8_t number) { return std::string(16, char(number)); }

}  // namespace

TEST_CASE("the cause of an ended session is told to its own tenant, and to who knows its identity as a whole") {
  EndedSessions ended;
  ended.add("anna", id(1), "its worker died");
  CHECK(ended.why("anna", shown(1)) == "its worker died");
  CHECK(ended.why("ben", shown(1)).empty());
  CHECK(ended.why("anna", shown(2)).empty());
  CHECK(ended.why("anna", shown(1).substr(1)).empty());
  CHECK(ended.why("anna", shown(1) + "x").empty());
  CHECK(ended.why("anna", "").empty());
}

TEST_CASE("the newest of each tenant are stored, and a tenant that ends many takes none of another's") {
  EndedSessions ended({.per_tenant = 3, .all = 5});
  ended.add("ben", id(100), "ben's first");
  ended.add("ben", id(101), "ben's second");
  for (uint8_t number = 1; number <= 10; ++number) ended.add("anna", id(number), "why");
  CHECK(ended.why("anna", shown(7)).empty());
  CHECK(ended.why("anna", shown(8)) == "why");
  CHECK(ended.why("ben", shown(100)) == "ben's first");
  // The tenant with most reasons makes room for one more.
  ended.add("carl", id(200), "carl's");
  CHECK(ended.size() == 5);
  CHECK(ended.why("anna", shown(8)).empty());
  CHECK(ended.why("anna", shown(9)) == "why");
  CHECK(ended.why("ben", shown(100)) == "ben's first");
  CHECK(ended.why("carl", shown(200)) == "carl's");
}

TEST_CASE("the beginning of a long cause is stored") {
  EndedSessions ended;
  ended.add("anna", id(1), std::string(100'000, 'x'));
  CHECK(ended.why("anna", shown(1)).size() == kEndedCauseBytesMax);
}
