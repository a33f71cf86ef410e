#include "client_stub/account/account_page.hpp"

#include <doctest/doctest.h>

#include <memory>
#include <string>
#include <thread>
#include <vector>

using namespace gpuwire::client;

TEST_CASE("the depth of an account is what GPUWIRE_STATS says") {
  CHECK(account_depth(nullptr) == AccountDepth::none);
  CHECK(account_depth("") == AccountDepth::none);
  CHECK(account_depth("0") == AccountDepth::none);
  CHECK(account_depth("1") == AccountDepth::summary);
  CHECK(account_depth("calls") == AccountDepth::calls);
  CHECK(account_depth("why") == AccountDepth::why);
}

TEST_CASE("all threads count in the same row of a function") {
  auto page = std::make_unique<AccountPage>();
  static const char kNames[][16] = {"cuInit", "cuMemAlloc", "cuLaunchKernel", "cuMemFree"};
  std::vector<std::thread> threads;
  for (int i = 0; i < 4; ++i) {
    threads.emplace_back([&] {
      for (int n = 0; n < 1000; ++n) count(costs_of(*page, kNames[n % 4])->calls, 1);
    });
  }
  for (auto& thread : threads) thread.join();
  for (const char* name : kNames) {
    FunctionCosts* costs = costs_of(*page, name);
    CHECK(costs->calls == 1000);
    CHECK(text_of(costs->name, sizeof costs->name) == name);
  }
}

TEST_CASE("a page that is full has no row for one more function") {
  auto page = std::make_unique<AccountPage>();
  const std::vector<char> names(kFunctionsMax + 1, 0);
  for (size_t i = 0; i < kFunctionsMax; ++i) REQUIRE(costs_of(*page, &names[i]));
  CHECK(costs_of(*page, &names[kFunctionsMax]) == nullptr);
  CHECK(costs_of(*page, &names[7]));
}

TEST_CASE("a counter that only grows does not go back to what an earlier look has seen") {
  uint64_t counter = 0;
  raise_to(counter, 7);
  raise_to(counter, 3);
  CHECK(counter == 7);
}

TEST_CASE("a text that is longer than its field is cut") {
  char field[4];
  put_text(field, sizeof field, "abcdef");
  CHECK(text_of(field, sizeof field) == "abc");
}
