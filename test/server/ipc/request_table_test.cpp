#include "server/ipc/request_table.hpp"

#include <string>
#include <vector>

#include <doctest/doctest.h>

using namespace gpuwire::server::ipc;
using Table = RequestTable<std::string>;
using std::chrono::seconds;

namespace {

constexpr Table::Clock::time_point kBegin{};

}  // namespace

TEST_CASE("an answer finds who waits for it, once") {
  Table table(4);
  auto first = table.open("first"), second = table.open("second");
  REQUIRE(first);
  REQUIRE(second);
  CHECK(*first != *second);
  CHECK(*table.find(*second) == "second");
  CHECK(table.close(*first) == "first");
  CHECK_FALSE(table.close(*first));
  CHECK_FALSE(table.find(*first));
  CHECK(table.size() == 1);
}

TEST_CASE("no more wait than may, and a number is not taken twice") {
  Table table(2);
  CHECK(table.open_as(7, "one"));
  CHECK_FALSE(table.open_as(7, "again"));
  CHECK(table.open_as(8, "two"));
  CHECK_FALSE(table.open_as(9, "three"));
  CHECK_FALSE(table.open("four"));
  table.close(7);
  CHECK(table.open_as(9, "three"));
}

TEST_CASE("those whose time is over leave, oldest first, and may ask again while they do") {
  Table table(4);
  table.open("early", kBegin + seconds(1));
  table.open("never");
  table.open("late", kBegin + seconds(5));
  table.open("early, too", kBegin + seconds(2));
  std::vector<std::string> late;
  table.expire(kBegin + seconds(2), [&](RequestId, std::string who) {
    late.push_back(who);
    if (late.size() == 1) CHECK(table.open("again", kBegin + seconds(9)));
  });
  CHECK(late == std::vector<std::string>{"early", "early, too"});
  CHECK(table.size() == 3);
}

TEST_CASE("when the other end is gone all of them leave") {
  Table table(4);
  table.open("one");
  table.open("two");
  std::vector<std::string> left;
  table.abandon([&](RequestId, std::string who) {
    left.push_back(who);
    CHECK(table.empty());
  });
  CHECK(left == std::vector<std::string>{"one", "two"});
}

TEST_CASE("a look at all of them takes out those that are answered") {
  Table table(4);
  for (const char* who : {"a1", "b", "a2"}) table.open(who);
  CHECK(table.count_if([](const std::string& who) { return who[0] == 'a'; }) == 2);
  table.visit_all([](RequestId, const std::string& who) { return who == "b"; });
  table.drop_if([](const std::string& who) { return who == "a1"; });
  CHECK(table.size() == 1);
}
