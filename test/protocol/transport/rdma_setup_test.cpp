// Agreeing on RDMA over a connection, and going on without it.
#include <doctest/doctest.h>

#include <array>
#include <cstdlib>
#include <future>
#include <thread>

#include <capnp/message.h>

#include "protocol/transport/control_message.hpp"
#include "protocol/transport/rdma_setup.hpp"
#include "protocol/wire/frame.hpp"
#include "protocol/wire/rdma.hpp"
#include "schema/handshake.capnp.h"
#include "test/protocol/transport/pairs.hpp"

using namespace gpuwire;
using namespace gpuwire::transport;

namespace {

constexpr std::chrono::seconds kLimit{120};
// What is not over by then never is.
constexpr std::chrono::seconds kHang{60};

struct Both {
  Agreed client, server;
};

Both agree(std::shared_ptr<RdmaFabric> clients, std::shared_ptr<RdmaFabric> servers,
           Nanoseconds greeting_max = kLimit) {
  auto ends = test::pair_kinds()[0].make(1);
  Both both;
  std::thread server([&] {
    const Transport& plain = *ends.second;
    both.server = offer_rdma(
        std::move(ends.second), [&](std::span<std::byte> out) { return peek_socket(plain, out); }, servers,
        "there is none today", kLimit);
  });
  both.client = ask_for_rdma(std::move(ends.first), std::move(clients), kLimit, greeting_max);
  server.join();
  return both;
}

// A byte each way.
void check_that_it_carries(Transport& one, Transport& other) {
  for (auto [from, to] : {std::pair{&one, &other}, std::pair{&other, &one}}) {
    std::byte sent{42}, got{};
    iovec piece{&sent, 1};
    CHECK(send_all(*from, {&piece, 1}, kLimit).status == IoStatus::ok);
    CHECK(receive_all(*to, {&got, 1}, kLimit).status == IoStatus::ok);
    CHECK(got == sent);
  }
}

}  // namespace

TEST_CASE("a client that asks for RDMA goes on by it, and so does the server") {
  auto fabric = test::rdma_fabric("tcp");
  if (!fabric) return;
  Both both = agree(*fabric, *fabric);
  CHECK(both.client.declined.empty());
  CHECK(both.server.declined.empty());
  REQUIRE(both.client.connection);
  REQUIRE(both.server.connection);
  CHECK(std::string(both.client.connection->road()) == "rdma");
  CHECK(std::string(both.server.connection->road()) == "rdma");
  check_that_it_carries(*both.client.connection, *both.server.connection);
}

TEST_CASE("a server that has no RDMA says why, and the streams go on over the connection as it was") {
  auto fabric = test::rdma_fabric("tcp");
  if (!fabric) return;
  Both both = agree(*fabric, nullptr);
  CHECK(both.client.declined == "the server: there is none today");
  CHECK_FALSE(both.client.lost);
  CHECK_FALSE(both.server.lost);
  CHECK(std::string(both.client.connection->road()) == "tcp");
  check_that_it_carries(*both.client.connection, *both.server.connection);
}

TEST_CASE("two that have no way to each other over the fabric go on over the connection as it was") {
  auto tcp = test::rdma_fabric("tcp"), posix = test::rdma_fabric("posix");
  if (!tcp || !posix) return;
  Both both = agree(*tcp, *posix);
  CHECK_FALSE(both.client.declined.empty());
  CHECK_FALSE(both.server.declined.empty());
  CHECK_FALSE(both.client.lost);
  CHECK_FALSE(both.server.lost);
  CHECK(std::string(both.server.connection->road()) == "tcp");
  check_that_it_carries(*both.client.connection, *both.server.connection);
}

TEST_CASE("a server that leaves before it has greeted is not waited for") {
  auto fabric = test::rdma_fabric("tcp");
  if (!fabric) return;
  auto silent = RdmaEnd::make(*fabric);
  REQUIRE(silent);
  auto ends = test::pair_kinds()[0].make(1);
  auto asked =
      std::async(std::launch::async, [&] { return ask_for_rdma(std::move(ends.first), *fabric, kLimit, 2 * kHang); });
  std::array<std::byte, sizeof(wire::FrameHeader)> header;
  REQUIRE(receive_all(*ends.second, header, kLimit).status == IoStatus::ok);
  capnp::MallocMessageBuilder message;
  auto end = message.initRoot<schema::Rdma>().initEnd();
  end.setVersion(rdma::kVersion);
  end.setAddress({reinterpret_cast<const kj::byte*>((*silent)->address().data()), (*silent)->address().size()});
  end.setToken({(*silent)->token().data(), (*silent)->token().size()});
  REQUIRE(send_control(*ends.second, wire::kRdmaOrdinal, message, kLimit));
  ends.second->finish();
  REQUIRE(asked.wait_for(kHang) == std::future_status::ready);
  CHECK_FALSE(asked.get().declined.empty());
}

TEST_CASE("a peer that does not ask for RDMA loses no byte to the question") {
  auto ends = test::pair_kinds()[0].make(1);
  wire::FrameHeader first{.kind = uint8_t(wire::FrameKind::control), .ordinal = 1};
  iovec piece{&first, sizeof first};
  REQUIRE(send_all(*ends.first, {&piece, 1}, kLimit).status == IoStatus::ok);
  const Transport& plain = *ends.second;
  Agreed agreed = offer_rdma(
      std::move(ends.second), [&](std::span<std::byte> out) { return peek_socket(plain, out); }, nullptr, "none",
      kLimit);
  CHECK_FALSE(agreed.lost);
  CHECK(agreed.declined.empty());
  wire::FrameHeader got;
  CHECK(receive_all(*agreed.connection, std::as_writable_bytes(std::span(&got, 1)), kLimit).status == IoStatus::ok);
  CHECK(got.ordinal == 1);
}

TEST_CASE("a client that leaves in the middle of its first header is not waited for") {
  auto ends = test::pair_kinds()[0].make(1);
  wire::FrameHeader first{.kind = uint8_t(wire::FrameKind::control), .ordinal = 12};
  iovec piece{&first, sizeof first / 2};
  REQUIRE(send_all(*ends.first, {&piece, 1}, kLimit).status == IoStatus::ok);
  ends.first->finish();
  const Transport& plain = *ends.second;
  auto offered = std::async(std::launch::async, [&] {
    return offer_rdma(
        std::move(ends.second), [&](std::span<std::byte> out) { return peek_socket(plain, out); }, nullptr, "none",
        2 * kHang);
  });
  CHECK(offered.wait_for(kHang) == std::future_status::ready);
  CHECK(offered.get().declined.empty());
}

TEST_CASE("a question that cannot be, and a client that leaves in the middle, end the connection and say why") {
  auto fabric = test::rdma_fabric("tcp");
  if (!fabric) return;
  for (uint32_t words : {0u, 1u, 100'000u}) {
    auto ends = test::pair_kinds()[0].make(1);
    wire::FrameHeader first{.kind = uint8_t(wire::FrameKind::control), .ordinal = 12, .message_words = words};
    iovec piece{&first, sizeof first};
    REQUIRE(send_all(*ends.first, {&piece, 1}, kLimit).status == IoStatus::ok);
    ends.first->finish();
    const Transport& plain = *ends.second;
    Agreed agreed = offer_rdma(
        std::move(ends.second), [&](std::span<std::byte> out) { return peek_socket(plain, out); }, *fabric, "", kLimit);
    INFO(words);
    CHECK_FALSE(agreed.declined.empty());
  }
}
