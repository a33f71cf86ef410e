#include "server/broker/share_table.hpp"

#include <string>

#include <doctest/doctest.h>
#include <fcntl.h>

#include "server/broker/limits.hpp"

using namespace gpuwire::server;

namespace {

constexpr uint32_t kMemory = 1, kPool = 2;
const int kFirst = 0, kSecond = 0;  // whose addresses stand for two workers

ShareToken token(size_t number) {
  ShareToken made{};
  for (size_t i = 0; i < sizeof number; ++i) made[i] = uint8_t(number >> (8 * i));
  made[15] = 1;
  return made;
}

OwnedDescriptor descriptor() { return OwnedDescriptor(::open("/dev/null", O_RDONLY | O_CLOEXEC)); }

bool is_open(int number) { return ::fcntl(number, F_GETFD) >= 0; }

}  // namespace

TEST_CASE("what is shared is found by token, kind and tenant, and by nothing less") {
  ShareTable table;
  REQUIRE(table.add(&kFirst, token(7), kMemory, "tenant", descriptor()));
  CHECK(table.find(token(7), kMemory, "tenant") >= 0);
  CHECK(table.find(token(8), kMemory, "tenant") == -1);
  CHECK(table.find(token(7), kPool, "tenant") == -1);
  CHECK(table.find(token(7), kMemory, "another") == -1);
  CHECK(table.find(token(7), kMemory, "") == -1);
  for (size_t byte = 0; byte < 16; ++byte) {
    ShareToken guess = token(7);
    guess[byte] ^= 0x80;
    CHECK(table.find(guess, kMemory, "tenant") == -1);
  }
}

TEST_CASE("a share ends when its session withdraws it or is over, and its descriptor with it") {
  ShareTable table;
  REQUIRE(table.add(&kFirst, token(1), kMemory, "", descriptor()));
  REQUIRE(table.add(&kFirst, token(2), kMemory, "", descriptor()));
  REQUIRE(table.add(&kSecond, token(3), kMemory, "", descriptor()));
  int withdrawn = table.find(token(1), kMemory, ""), forgotten = table.find(token(2), kMemory, ""), kept = table.find(token(3), kMemory, "");
  table.withdraw(&kSecond, token(1));  // not its own
  CHECK(is_open(withdrawn));
  table.withdraw(&kFirst, token(1));
  CHECK(table.find(token(1), kMemory, "") == -1);
  CHECK_FALSE(is_open(withdrawn));
  table.forget(&kFirst);
  CHECK(table.size() == 1);
  CHECK_FALSE(is_open(forgotten));
  CHECK(is_open(kept));
}

TEST_CASE("a token is taken once, and a session has a bounded number of shares") {
  ShareTable table;
  REQUIRE(table.add(&kFirst, token(0), kMemory, "", descriptor()));
  CHECK_FALSE(table.add(&kSecond, token(0), kMemory, "", descriptor()));
  CHECK_FALSE(table.add(&kFirst, token(1), kMemory, "", OwnedDescriptor()));
  int null = ::open("/dev/null", O_RDONLY | O_CLOEXEC);
  REQUIRE(null >= 0);
  size_t added = 1;
  // Descriptors may run out before the bound is met, in this process; then the last ones are none, and refused too.
  for (size_t i = 1; i <= kSharesPerSessionMax; ++i) added += table.add(&kFirst, token(i), kMemory, "", OwnedDescriptor(::fcntl(null, F_DUPFD_CLOEXEC, 0)));
  ::close(null);
  CHECK(added <= kSharesPerSessionMax);
  CHECK(table.size() == added);
}
