// Records: whole, cut, changed, and many at once. What every transport has to do is tested in test/transport.
#include <doctest/doctest.h>

#include <sys/wait.h>

#include <cstring>
#include <random>

#include "test/protocol/tls/certificates.hpp"
#include "test/protocol/tls/handshakes.hpp"

using namespace gpuwire;
using namespace gpuwire::test;
using transport::IoStatus;

namespace {

void meet_with_key(Met& met) {
  tls::SessionKey key{};
  key[0] = 1;
  meet(met, tls::key_client_context(key), tls::key_server_context(key));
  REQUIRE(met.client_error == "");
  REQUIRE(met.server_error == "");
}

std::vector<std::byte> some_bytes(size_t count) {
  std::mt19937_64 random(count);
  std::vector<std::byte> bytes(count);
  for (auto& byte : bytes) byte = std::byte(random());
  return bytes;
}

// What lies in the socket, not yet read by the channel behind it.
std::vector<std::byte> take_raw(int descriptor) {
  std::vector<std::byte> bytes(1 << 20);
  ssize_t got = recv(descriptor, bytes.data(), bytes.size(), MSG_DONTWAIT);
  bytes.resize(size_t(std::max<ssize_t>(got, 0)));
  return bytes;
}

// Sends `count` bytes from the client, and has `change` see the encrypted bytes before the server gets them.
template <class Change>
transport::IoResult after_change(Met& met, size_t count, Change&& change) {
  meet_with_key(met);
  SocketPair between;  // its server end stands in front of the server's channel
  REQUIRE(send_all(*met.client, met.sockets.client, some_bytes(count)));
  auto bytes = take_raw(met.sockets.server);
  REQUIRE(bytes.size() > count);
  change(bytes);
  dup2(between.server, met.sockets.server);
  REQUIRE(::send(between.client, bytes.data(), bytes.size(), MSG_NOSIGNAL) == ssize_t(bytes.size()));
  between.close_client();
  between.close_server();
  std::vector<std::byte> out(count);
  return receive_some(*met.server, met.sockets.server, out);
}

}  // namespace

TEST_CASE("a byte that was changed on the way ends the connection") {
  Met met;
  auto result = after_change(met, 100, [](auto& bytes) { bytes[50] ^= std::byte{1}; });
  CHECK(result.status == IoStatus::failed);
  CHECK(met.server->failure() == "what arrived was changed on the way");
  std::byte out[8];
  CHECK(met.server->try_receive(out).status == IoStatus::failed);
  iovec piece{out, sizeof out};
  CHECK(met.server->try_send({&piece, 1}).status == IoStatus::failed);
}

TEST_CASE("records that come a second time end the connection") {
  Met met;
  auto result = after_change(met, 100, [](auto& bytes) {
    auto copy = bytes;
    bytes.insert(bytes.end(), copy.begin(), copy.end());
  });
  CHECK(result.status == IoStatus::ok);
  CHECK(result.bytes == 100);
  std::byte out[8];
  CHECK(receive_some(*met.server, met.sockets.server, out).status == IoStatus::failed);
}

TEST_CASE("a record that is cut off, and an end without TLS's own, are a lost connection and no end") {
  for (size_t kept : {size_t(0), size_t(3), size_t(40)}) {
    CAPTURE(kept);
    Met met;
    auto result = after_change(met, 100, [&](auto& bytes) { bytes.resize(kept + 1); });
    CHECK(result.status == IoStatus::failed);
    CHECK(result.error == ECONNRESET);
    CHECK(met.server->failure() == "the client closed the connection");
  }
}

TEST_CASE("a sender whose peer has gone has lost the connection") {
  Met met;
  meet_with_key(met);
  met.sockets.close_server();
  CHECK_FALSE(send_all(*met.client, met.sockets.client, some_bytes(100)));
  CHECK(met.client->dropped());
  CHECK(met.client->failure() == "the server closed the connection");
}

TEST_CASE("bytes that are no records end the connection") {
  Met met;
  auto result = after_change(met, 100, [](auto& bytes) { std::memset(bytes.data(), 'x', bytes.size()); });
  CHECK(result.status == IoStatus::failed);
  CHECK(met.server->failure() == "the client does not speak TLS where it should");
}

TEST_CASE("a close_notify is the end, and nothing can be sent after it") {
  Met met;
  meet_with_key(met);
  met.client->close_notify();
  std::byte out[8];
  CHECK(receive_some(*met.server, met.sockets.server, out).status == IoStatus::closed);
  iovec piece{out, sizeof out};
  CHECK(met.client->try_send({&piece, 1}).status == IoStatus::failed);
  CHECK(met.server->try_send({&piece, 1}).status == IoStatus::ok);
}

TEST_CASE("short pieces share a record") {
  Met met;
  meet_with_key(met);
  auto bytes = some_bytes(3000);
  std::vector<iovec> pieces;
  for (size_t i = 0; i < 3; ++i) pieces.push_back({bytes.data() + i * 1000, 1000});
  CHECK(met.client->try_send(pieces).bytes == 3000);
  CHECK(take_raw(met.sockets.server).size() < 3000 + 2 * 22);
}

TEST_CASE("a look ahead sees what came in several records, and all of it is received afterwards") {
  Met met;
  meet_with_key(met);
  auto bytes = some_bytes(100);
  auto send = [&](size_t from, size_t count) {
    REQUIRE(send_all(*met.client, met.sockets.client, std::span(bytes).subspan(from, count)));
  };
  std::vector<std::byte> seen(32), received(100);
  send(0, 16);
  CHECK(met.server->try_peek(seen).bytes == 16);
  CHECK(met.server->pending());
  CHECK_FALSE(met.server->drained());
  send(16, 84);
  CHECK(met.server->try_peek(seen).bytes == 32);
  CHECK(met.server->try_peek(seen).bytes == 32);
  CHECK(std::equal(seen.begin(), seen.end(), bytes.begin()));
  size_t got = 0;
  while (got < received.size()) {
    auto result = met.server->try_receive(std::span(received).subspan(got, std::min<size_t>(20, 100 - got)));
    REQUIRE(result.status == IoStatus::ok);
    got += result.bytes;
  }
  CHECK(received == bytes);
  CHECK(met.server->drained());
  CHECK(met.server->try_peek(seen).status == IoStatus::would_block);
}

TEST_CASE("data that are encrypted but held up count as sent once, in the call that sends them") {
  Met met;
  meet_with_key(met);
  auto bytes = some_bytes(4 << 20);
  size_t sent = 0;
  std::vector<std::byte> arrived(bytes.size());
  size_t got = 0;
  bool held_up = false;
  while (got < bytes.size()) {
    if (sent < bytes.size()) {
      iovec piece{bytes.data() + sent, bytes.size() - sent};
      auto result = met.client->try_send({&piece, 1});
      REQUIRE(result.status != IoStatus::failed);
      sent += result.bytes;
      if (result.status == IoStatus::ok) continue;
      held_up = true;
    }
    auto result = met.server->try_receive({arrived.data() + got, std::min<size_t>(arrived.size() - got, 10'007)});
    REQUIRE(result.status != IoStatus::failed);
    got += result.bytes;
  }
  CHECK(held_up);
  CHECK(sent == bytes.size());
  CHECK(arrived == bytes);
}

TEST_CASE("a side changes its key in time, and nobody notices") {
  Met met;
  meet_with_key(met);
  met.client->set_records_per_key(2);
  for (int i = 0; i < 20; ++i) {
    auto bytes = some_bytes(100 + size_t(i));
    REQUIRE(send_all(*met.client, met.sockets.client, bytes));
    std::vector<std::byte> out(200);
    auto result = receive_some(*met.server, met.sockets.server, out);
    REQUIRE(result.status == IoStatus::ok);
    out.resize(result.bytes);
    CHECK(out == bytes);
  }
}

// Not under the address sanitizer: its allocator does not survive a fork() of a process with threads (its locks stay
// taken in the child).
#ifndef __SANITIZE_ADDRESS__
TEST_CASE("a child after fork() can shake hands, whatever the parent's threads were doing") {
  std::atomic<bool> stop{false};
  std::thread busy([&] {
    while (!stop) {
      Met met;
      meet_with_key(met);
    }
  });
  int failed = 0;
  for (int i = 0; i < 20; ++i) {
    pid_t child = fork();
    if (child == 0) {
      alarm(20);
      tls::SessionKey key{};
      Met met;
      tls::Context client = tls::key_client_context(key), server = tls::key_server_context(key);
      met.client = tls::TlsChannel::connect(client, met.sockets.client);
      met.server = tls::TlsChannel::accept(server, met.sockets.server);
      auto near = tls::TlsChannel::Step::wants_read, far = near;
      for (int step = 0; step < 10 && (near != tls::TlsChannel::Step::done || far != tls::TlsChannel::Step::done);
           ++step) {
        near = met.client->step();
        far = met.server->step();
      }
      _exit(near == tls::TlsChannel::Step::done && far == tls::TlsChannel::Step::done ? 0 : 1);
    }
    int status = 0;
    waitpid(child, &status, 0);
    failed += status != 0;
  }
  stop = true;
  busy.join();
  CHECK(failed == 0);
}
#endif
