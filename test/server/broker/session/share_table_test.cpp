#include "server/broker/session/share_table.hpp"

#include <string>

#include <doctest/doctest.h>
#include <fcntl.h>

#include "server/broker/limits.hpp"

using namespace gpuwire::server;

namespace {

constexpr uint32_t kMemory = 1, kPool = 2;
const ShareGroup kTenant{"tenant", "user"};
const int kFirst = 0, kSecond = 0;  // their addresses stand for two workers

ShareToken token(size_t number) {
  ShareToken made{};
  for (size_t i = 0; i < sizeof number; ++i) made[i] = uint8_t(number >> (8 * i));
  made[15] = 1;
  return made;
}

OwnedDescriptor descriptor() { return OwnedDescriptor(::open("/dev/null", O_RDONLY | O_CLOEXEC)); }

bool is_open(int number) { return ::fcntl(number, F_GETFD) >= 0; }

}  // namespace

TEST_CASE("a share is found by token, kind and tenant, and by nothing less") {
  ShareTable table(share_limits(1 << 20));
  REQUIRE(table.add(&kFirst, token(7), kMemory, kTenant, descriptor()));
  CHECK(table.find(token(7), kMemory, kTenant) >= 0);
  CHECK(table.find(token(8), kMemory, kTenant) == -1);
  CHECK(table.find(token(7), kPool, kTenant) == -1);
  CHECK(table.find(token(7), kMemory, ShareGroup{"another", "user"}) == -1);
  CHECK(table.find(token(7), kMemory, ShareGroup{"tenant", "another"}) == -1);
  CHECK(table.find(token(7), kMemory, ShareGroup{"tenantuser", ""}) == -1);
  for (size_t byte = 0; byte < 16; ++byte) {
    ShareToken guess = token(7);
    guess[byte] ^= 0x80;
    CHECK(table.find(guess, kMemory, kTenant) == -1);
  }
}

TEST_CASE("a share ends when its session withdraws it or is over, and its descriptor with it") {
  ShareTable table(share_limits(1 << 20));
  REQUIRE(table.add(&kFirst, token(1), kMemory, kTenant, descriptor()));
  REQUIRE(table.add(&kFirst, token(2), kMemory, kTenant, descriptor()));
  REQUIRE(table.add(&kSecond, token(3), kMemory, kTenant, descriptor()));
  int withdrawn = table.find(token(1), kMemory, kTenant), forgotten = table.find(token(2), kMemory, kTenant),
      kept = table.find(token(3), kMemory, kTenant);
  table.withdraw(&kSecond, token(1));  // another owner's share
  CHECK(is_open(withdrawn));
  table.withdraw(&kFirst, token(1));
  CHECK(table.find(token(1), kMemory, kTenant) == -1);
  CHECK_FALSE(is_open(withdrawn));
  table.forget(&kFirst);
  CHECK(table.size() == 1);
  CHECK_FALSE(is_open(forgotten));
  CHECK(is_open(kept));
}

TEST_CASE("a token is taken once") {
  ShareTable table(share_limits(1 << 20));
  REQUIRE(table.add(&kFirst, token(0), kMemory, kTenant, descriptor()));
  CHECK_FALSE(table.add(&kSecond, token(0), kMemory, kTenant, descriptor()));
  CHECK_FALSE(table.add(&kFirst, token(1), kMemory, kTenant, OwnedDescriptor()));
}

TEST_CASE("a session has a bounded number of shares, its tenant more, and there are others left for other tenants") {
  ShareTable table({.all = 10, .per_tenant = 6, .per_session = 4});
  const ShareGroup other{"other", "user"}, third{"third", "user"};
  const int worker_of_other = 0, worker_of_third = 0;
  size_t number = 0;
  auto add = [&](const int& worker, const ShareGroup& group) {
    size_t added = 0;
    for (int i = 0; i < 8; ++i) added += table.add(&worker, token(number++), kMemory, group, descriptor());
    return added;
  };
  CHECK(add(kFirst, kTenant) == 4);
  CHECK(add(kSecond, kTenant) == 2);
  CHECK(add(worker_of_other, other) == 4);
  CHECK(add(worker_of_third, third) == 0);
  table.forget(&kFirst);
  CHECK(add(worker_of_third, third) == 4);
}

TEST_CASE("shares leave most descriptors of a process with few to everything else") {
  ShareLimits few = share_limits(1024), many = share_limits(1 << 20), none = share_limits(kDescriptorsReserved);
  CHECK(few.all == 192);
  CHECK(few.per_tenant == 96);
  CHECK(few.per_session == 48);
  CHECK(many.all == kSharesMax);
  CHECK(many.per_session == kSharesPerSessionMax);
  CHECK(none.all == 0);
}
