#include "client_stub/account/account_text.hpp"

#include <doctest/doctest.h>

#include <cstring>
#include <memory>

using namespace gpuwire::client;

namespace {

std::unique_ptr<AccountPage> page_of(AccountDepth depth) {
  auto page = std::make_unique<AccountPage>();
  page->depth = depth;
  page->process_id = 42;
  put_text(page->program, sizeof page->program, "train");
  put_text(page->server, sizeof page->server, "gpu7:9750 over tls, release 0.1.0, driver CUDA 13.0");
  page->device_count = 1;
  put_text(page->devices[0], sizeof page->devices[0], "NVIDIA H200");
  page->by_class[2] = 3;
  page->session.waits = 5;
  page->session.wait_ns = 2'000'000;
  FunctionCosts* costs = costs_of(*page, "cuMemAlloc_v2");
  costs->calls = costs->waits = 3;
  return page;
}

bool has(const std::string& text, const char* part) { return text.find(part) != std::string::npos; }

}  // namespace

TEST_CASE("an account says whose it is, of which server, and what was counted") {
  const std::string text = account_text(*page_of(AccountDepth::summary), {.elapsed_ns = 9'000'000});
  CHECK(text.starts_with("gpuwire: account of train, process 42\ngpuwire: device 0: NVIDIA H200\n"));
  CHECK(has(text, "gpuwire: server: gpu7:9750 over tls, release 0.1.0, driver CUDA 13.0\n"));
  CHECK(has(text, "gpuwire: calls: 0 local, 0 posted, 3 called\n"));
  CHECK(has(text, "gpuwire: waits: 5, 2.00 ms; elapsed 9.0 ms\n"));
  CHECK(!has(text, "cuMemAlloc"));
}

TEST_CASE("an account that was cut short says so first, at every depth") {
  for (AccountDepth depth : {AccountDepth::summary, AccountDepth::calls, AccountDepth::why}) {
    const std::string text = account_text(*page_of(depth), {.cut_short = true});
    CHECK(text.starts_with("gpuwire: train, process 42, ended by a signal or by _exit: "));
  }
}

TEST_CASE("waits that belong to no call have a row of their own") {
  const std::string text = account_text(*page_of(AccountDepth::calls), {});
  CHECK(has(text, "cuMemAlloc_v2 "));
  CHECK(has(text, "(not in a call)"));
}

TEST_CASE("a page that another process has filled with anything ends in text all the same") {
  auto page = std::make_unique<AccountPage>();
  for (AccountDepth depth : {AccountDepth::summary, AccountDepth::calls, AccountDepth::why}) {
    std::memset(static_cast<void*>(page.get()), 0x7f, sizeof *page);
    page->depth = depth;
    CHECK(account_text(*page, {}).ends_with("\n"));
  }
}
