// The listener without a broker: connections that arrive without free descriptors, and the connections that are dropped
// to make room.
#include "server/broker/connection/listener.hpp"

#include <arpa/inet.h>
#include <doctest/doctest.h>
#include <netinet/in.h>
#include <poll.h>
#include <spdlog/spdlog.h>
#include <sys/socket.h>
#include <sys/un.h>

#include "protocol/wire/preface.hpp"
#include "server/broker/limits.hpp"
#include "test/server/base/no_descriptors.hpp"
#include "test/server/worker/server_process.hpp"
#include "test/support/temporary_directory.hpp"
#include "protocol/transport/connecting.hpp"

using namespace gpuwire;
using namespace gpuwire::server;
using namespace gpuwire::test;

namespace {

// A listener on loopback and on a Unix socket. Its events run in run().
struct Door {
  Door() {
    spdlog::set_level(spdlog::level::off);
    REQUIRE(door.listen(
        {{boost::asio::ip::tcp::endpoint(boost::asio::ip::address_v4::loopback(), 0), {}}, {std::nullopt, unix_path}}));
    port = door.addresses().front().tcp->port();
    door.open();
  }
  size_t run_for(std::chrono::milliseconds time) { return io.run_for(time); }
  template <class Condition>
  bool run_until(Condition&& condition) {
    return eventually([&] {
      io.poll();
      return condition();
    });
  }

  TemporaryDirectory folder;
  std::string unix_path = (folder.path() / "socket").string();
  boost::asio::io_context io{1};
  size_t entered = 0, refused = 0;
  Listener door{io,
                {.judge = [](const Caller&) { return std::nullopt; },
                 .enter = [this](Caller, OwnedDescriptor) { ++entered; },
                 .refused = [this](const Caller&, const Listener::Refusal&) { ++refused; },
                 .emptied = [] {}}};
  uint16_t port = 0;
};

OwnedDescriptor tcp_socket() { return OwnedDescriptor(::socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0)); }
OwnedDescriptor unix_socket() { return OwnedDescriptor(::socket(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0)); }

sockaddr_in address_of(const char* host, uint16_t port) {
  sockaddr_in address{};
  address.sin_family = AF_INET;
  address.sin_port = htons(port);
  ::inet_pton(AF_INET, host, &address.sin_addr);
  return address;
}

void connect_tcp(const OwnedDescriptor& socket, uint16_t port, const char* from = "127.0.0.1") {
  sockaddr_in own = address_of(from, 0), server = address_of("127.0.0.1", port);
  REQUIRE(::bind(socket.get(), reinterpret_cast<sockaddr*>(&own), sizeof own) == 0);
  REQUIRE(transport::connect_through_signals(socket.get(), reinterpret_cast<sockaddr*>(&server), sizeof server) == 0);
}

void connect_unix(const OwnedDescriptor& socket, const std::string& path) {
  sockaddr_un server{};
  server.sun_family = AF_UNIX;
  path.copy(server.sun_path, sizeof server.sun_path - 1);
  REQUIRE(transport::connect_through_signals(socket.get(), reinterpret_cast<sockaddr*>(&server), sizeof server) == 0);
}

bool readable(const OwnedDescriptor& socket) {
  pollfd ready{socket.get(), POLLIN, 0};
  return ::poll(&ready, 1, 0) == 1;
}

void send_preface(const OwnedDescriptor& socket) {
  wire::PrefaceBytes bytes = wire::encode(wire::own_preface());
  REQUIRE(::send(socket.get(), bytes.data(), bytes.size(), MSG_NOSIGNAL) == ssize_t(bytes.size()));
}

}  // namespace

TEST_CASE("a client that comes while there is no descriptor left is told so, and comes in when there is one again") {
  Door door;
  OwnedDescriptor early = tcp_socket(), local = unix_socket();
  {
    NoDescriptors none;
    connect_tcp(early, door.port);
    connect_unix(local, door.unix_path);
    for (const OwnedDescriptor* client : {&early, &local}) {
      send_preface(*client);
      REQUIRE(door.run_until([&] { return readable(*client); }));
      wire::PrefaceBytes bytes;
      REQUIRE(::recv(client->get(), bytes.data(), bytes.size(), MSG_WAITALL) == ssize_t(bytes.size()));
      CHECK(wire::RefusalCode(wire::decode(bytes).status) == wire::RefusalCode::busy);
    }
  }
  CHECK(door.refused == 2);
  OwnedDescriptor late = tcp_socket();
  connect_tcp(late, door.port);
  send_preface(late);
  CHECK(door.run_until([&] { return door.entered == 1; }));
}

TEST_CASE("a query on this machine for a server is answered, and is no refused client") {
  Door door;
  auto ask = [&](const char* from) {
    OwnedDescriptor socket = tcp_socket();
    connect_tcp(socket, door.port, from);
    wire::Preface question = wire::own_preface();
    question.protocol_major = question.protocol_minor = 0;
    wire::PrefaceBytes bytes = wire::encode(question);
    REQUIRE(::send(socket.get(), bytes.data(), bytes.size(), MSG_NOSIGNAL) == ssize_t(bytes.size()));
    REQUIRE(door.run_until([&] { return readable(socket); }));
    REQUIRE(::recv(socket.get(), bytes.data(), bytes.size(), MSG_WAITALL) == ssize_t(bytes.size()));
    CHECK(wire::RefusalCode(wire::decode(bytes).status) == wire::RefusalCode::version);
  };
  ask("127.0.0.1");
  CHECK(door.refused == 0);
  ask("127.0.0.2");  // like another machine
  CHECK(door.refused == 1);
}

TEST_CASE("two addresses without descriptors wait, each for itself, and do not spin") {
  Door door;
  std::vector<OwnedDescriptor> clients;
  for (size_t i = 0; i < kSpareDescriptors + 2; ++i) clients.push_back(tcp_socket());
  OwnedDescriptor local = unix_socket();
  NoDescriptors none;
  for (const OwnedDescriptor& client : clients) connect_tcp(client, door.port);
  connect_unix(local, door.unix_path);
  REQUIRE(door.run_until([&] { return door.refused == kSpareDescriptors; }));
  // Each address retries a few times; a busy loop would retry thousands of times.
  CHECK(door.run_for(std::chrono::milliseconds(3 * kAcceptRetryMs)) < 100);
}

TEST_CASE("the address whose silent connections are oldest makes room, of two with as many") {
  Door door;
  std::vector<OwnedDescriptor> first, second;
  auto fill = [&](std::vector<OwnedDescriptor>& clients, const char* from) {
    for (size_t i = 0; i < kHalfOpenPerAddressMax; ++i) {
      connect_tcp(clients.emplace_back(tcp_socket()), door.port, from);
      door.io.poll();
    }
  };
  fill(first, "127.0.0.3");
  fill(second, "127.0.0.2");
  OwnedDescriptor newcomer = tcp_socket();
  connect_tcp(newcomer, door.port, "127.0.0.9");
  CHECK(door.run_until([&] { return readable(first.front()); }));
  CHECK_FALSE(readable(first[1]));
  for (const OwnedDescriptor& client : second) CHECK_FALSE(readable(client));
}
