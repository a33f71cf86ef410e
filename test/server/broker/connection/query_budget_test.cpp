#include <string>

#include <doctest/doctest.h>

#include "server/broker/connection/query_budget.hpp"

using namespace gpuwire::server;

namespace {

size_t answered(QueryBudget& budget, const std::string& tenant, size_t asked) {
  size_t count = 0;
  for (size_t i = 0; i < asked; ++i) count += budget.take(tenant);
  return count;
}

}  // namespace

TEST_CASE("a tenant that asks all the time is answered so often, and another as if it were alone") {
  std::chrono::steady_clock::time_point now{std::chrono::hours(1)};
  QueryBudget budget([&] { return now; });
  CHECK(answered(budget, "anna", 1000) == kQueriesAtOnce);
  CHECK(answered(budget, "ben", kQueriesAtOnce) == kQueriesAtOnce);
  now += std::chrono::milliseconds(3 * kQueryRefillMs);
  CHECK(answered(budget, "anna", 1000) == 3);
  now += std::chrono::hours(1);
  CHECK(answered(budget, "anna", 1000) == kQueriesAtOnce);
}

TEST_CASE("the budget keeps nothing of tenants that have not asked for a while") {
  std::chrono::steady_clock::time_point now{std::chrono::hours(1)};
  QueryBudget budget([&] { return now; });
  for (int i = 0; i < 100; ++i) budget.take("tenant " + std::to_string(i));
  CHECK(budget.tenants() == 100);
  now += std::chrono::milliseconds(kQueryRefillMs);
  budget.take("anna");
  CHECK(budget.tenants() == 1);
}
