#include "protocol/resume/exchange.hpp"

#include <doctest/doctest.h>

#include <cstring>
#include <optional>
#include <thread>

#include "test/protocol/transport/pairs.hpp"

using namespace gpuwire;

namespace {

constexpr std::chrono::seconds kLimit{120};
const resume::SessionId kSession{1, 2, 3};
const resume::Secret kSecret{9, 8, 7};

struct Exchanged {
  tl::expected<uint64_t, resume::Failure> client = tl::unexpected(resume::Failure{});
  tl::expected<resume::Request, std::string> server = tl::unexpected(std::string());
};

// A client with this claim, and a server that takes right ones.
Exchanged exchange(test::Ends ends, const resume::Claim& claim) {
  Exchanged both;
  std::thread server([&] {
    both.server = resume::receive_request(*ends.second, kSession, kSecret, kLimit);
    if (both.server) {
      CHECK(resume::accept(*ends.second, 77, kLimit));
      std::byte next{42};
      iovec piece{&next, 1};
      CHECK(send_all(*ends.second, {&piece, 1}, kLimit).status == transport::IoStatus::ok);
    }
  });
  both.client = resume::ask(*ends.first, claim, kLimit);
  if (both.client) {
    // The first byte behind the exchange is still there.
    std::byte next{};
    CHECK(receive_all(*ends.first, {&next, 1}, kLimit).status == transport::IoStatus::ok);
    CHECK(next == std::byte{42});
  }
  server.join();
  return both;
}

}  // namespace

TEST_CASE("an end with the secret sends its position and gets the other's, and no byte behind that is read") {
  for (const auto& kind : test::pair_kinds()) {
    INFO(kind.name);
    auto both = exchange(kind.make(test::test_seed()), {kSession, kSecret, 3, 1234});
    REQUIRE(both.client);
    CHECK(*both.client == 77);
    REQUIRE(both.server);
    CHECK(both.server->attempt == 3);
    CHECK(both.server->received == 1234);
  }
}

TEST_CASE("a wrong secret and another session are refused in words, on every transport") {
  for (const auto& kind : test::pair_kinds()) {
    INFO(kind.name);
    resume::Secret other = kSecret;
    other.back() ^= 1;
    auto wrong = exchange(kind.make(1), {kSession, other, 1, 0});
    CHECK_FALSE(wrong.server);
    REQUIRE_FALSE(wrong.client);
    CHECK(wrong.client.error().refused);
    CHECK(wrong.client.error().cause == "the session is not this client's");
    resume::SessionId stranger = kSession;
    stranger[0] ^= 1;
    CHECK_FALSE(exchange(kind.make(2), {stranger, kSecret, 1, 0}).server);
  }
}

TEST_CASE("a refusal is one line that does nothing to a terminal") {
  auto ends = test::pair_kinds()[1].make(1);
  std::thread server([&] {
    CHECK(resume::receive_request(*ends.second, kSession, kSecret, kLimit));
    resume::refuse(*ends.second, "no\x1b[2J\n\x7f \xc2\x9b end", kLimit);
  });
  auto answer = resume::ask(*ends.first, {kSession, kSecret, 1, 0}, kLimit);
  server.join();
  REQUIRE_FALSE(answer);
  CHECK(answer.error().refused);
  CHECK(answer.error().cause == "no [2J      end");
}

TEST_CASE("a proof counts for one challenge, one connection and one attempt") {
  resume::Challenge challenge{5};
  auto proof = resume::proof_of(kSecret, challenge, "binding", kSession, 1);
  CHECK(resume::same(proof, resume::proof_of(kSecret, challenge, "binding", kSession, 1)));
  CHECK_FALSE(resume::same(proof, resume::proof_of(kSecret, challenge, "binding", kSession, 2)));
  CHECK_FALSE(resume::same(proof, resume::proof_of(kSecret, challenge, "another", kSession, 1)));
  CHECK_FALSE(resume::same(proof, resume::proof_of(kSecret, {6}, "binding", kSession, 1)));
}

TEST_CASE("two ends of a TLS connection have the same binding, other connections another, and bare ones none") {
  std::optional<std::string> first;
  for (const auto& kind : test::pair_kinds()) {
    auto ends = kind.make(1);
    CHECK(ends.first->binding() == ends.second->binding());
    bool tls = kind.name.find("tls") != std::string::npos;
    CHECK(ends.first->binding().empty() == !tls);
    if (!tls) continue;
    CHECK(ends.first->binding() != first.value_or(""));
    first = ends.first->binding();
  }
  CHECK(first);
}

TEST_CASE("a frame that is none of the exchange ends it") {
  auto ends = test::pair_kinds()[1].make(1);
  char garbage[64] = "GET / HTTP/1.1";
  iovec piece{garbage, sizeof garbage};
  REQUIRE(send_all(*ends.first, {&piece, 1}, kLimit).status == transport::IoStatus::ok);
  CHECK_FALSE(resume::receive_request(*ends.second, kSession, kSecret, kLimit));
}
