#include <doctest/doctest.h>

#include <fcntl.h>
#include <netinet/in.h>
#include <netinet/tcp.h>
#include <poll.h>
#include <sys/socket.h>
#include <unistd.h>

#include "protocol/transport/stream.hpp"
#include "protocol/transport/tcp.hpp"
#include "protocol/transport/unix.hpp"

using namespace gpuwire::transport;

namespace {

int option(int socket, int level, int name) {
  int value = 0;
  socklen_t size = sizeof value;
  getsockopt(socket, level, name, &value, &size);
  return value;
}

}  // namespace

TEST_CASE("an address is a host, a port or both") {
  CHECK(parse_endpoint("gpu7")->host == "gpu7");
  CHECK(parse_endpoint("gpu7")->port == kDefaultPort);
  CHECK(parse_endpoint("gpu7:81")->port == 81);
  CHECK(parse_endpoint("10.0.0.1:65535")->port == 65535);
  CHECK(parse_endpoint("[::1]:81")->host == "::1");
  CHECK(parse_endpoint("[::1]:81")->port == 81);
  CHECK(parse_endpoint("[::1]")->port == kDefaultPort);
}

TEST_CASE("an address that is none is refused with what is wrong in it") {
  for (const char* bad : {"", ":81", "gpu7:", "gpu7:port", "gpu7:65536", "gpu7:-1", "gpu7:8 ", "::1", "[::1", "[::1]81",
                          "[::1]:", "[]:81"}) {
    INFO(bad);
    auto endpoint = parse_endpoint(bad);
    CHECK_FALSE(endpoint);
    if (!endpoint) CHECK_FALSE(endpoint.error().empty());
  }
}

TEST_CASE("connecting where nobody listens says so") {
  // A port that was just given back by the system.
  uint16_t port;
  {
    auto listener = TcpListener::listen({"127.0.0.1", 0});
    REQUIRE(listener);
    port = (*listener)->endpoint().port;
    CHECK((*listener)->loopback());
  }
  auto connected = connect_tcp({"127.0.0.1", port}, std::chrono::seconds(120));
  REQUIRE_FALSE(connected);
  CHECK(connected.error().find("connection refused") == 0);
}

TEST_CASE("connecting to a name that does not exist says so") {
  auto connected = connect_tcp({"no such host", 80}, std::chrono::seconds(120));
  REQUIRE_FALSE(connected);
  CHECK(connected.error().find("unknown host") == 0);
}

TEST_CASE("connecting gives up when the time is over") {
  // A listener that accepts nobody: once its queue is full the kernel drops what knocks.
  int listening = socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0);
  sockaddr_in address{};
  address.sin_family = AF_INET;
  address.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
  socklen_t size = sizeof address;
  REQUIRE(bind(listening, reinterpret_cast<sockaddr*>(&address), size) == 0);
  REQUIRE(listen(listening, 0) == 0);
  getsockname(listening, reinterpret_cast<sockaddr*>(&address), &size);
  std::vector<std::unique_ptr<Transport>> connected;
  std::string error;
  for (int tries = 0; tries < 16 && error.empty(); ++tries) {
    auto attempt = connect_tcp({"127.0.0.1", ntohs(address.sin_port)}, std::chrono::milliseconds(100));
    if (attempt) connected.push_back(std::move(*attempt));
    else error = attempt.error();
  }
  CHECK(error == "no answer within 0.1 s");
  close(listening);
}

TEST_CASE("a port that is taken cannot be listened on twice") {
  auto first = TcpListener::listen({"127.0.0.1", 0});
  REQUIRE(first);
  auto second = TcpListener::listen({"127.0.0.1", (*first)->endpoint().port});
  REQUIRE_FALSE(second);
  CHECK(second.error().find("in use") != std::string::npos);
}

TEST_CASE("accepting without a client returns at once") {
  auto listener = TcpListener::listen({"127.0.0.1", 0});
  REQUIRE(listener);
  auto accepted = (*listener)->accept();
  CHECK(accepted.descriptor == -1);
  CHECK(accepted.error == 0);
}

TEST_CASE("sockets of a session are close-on-exec and do not collect small packets") {
  auto listener = TcpListener::listen({"127.0.0.1", 0});
  REQUIRE(listener);
  auto client = connect_tcp((*listener)->endpoint(), std::chrono::seconds(120));
  REQUIRE(client);
  pollfd ready{(*listener)->descriptor(), POLLIN, 0};
  REQUIRE(poll(&ready, 1, 120'000) == 1);
  auto accepted = (*listener)->accept();
  REQUIRE(accepted.descriptor >= 0);
  CHECK(accepted.peer.find("127.0.0.1:") == 0);
  CHECK((fcntl(accepted.descriptor, F_GETFD) & FD_CLOEXEC));
  auto server = adopt_stream(accepted.descriptor, accepted.peer);
  REQUIRE(server);
  CHECK(server->peer() == accepted.peer);
  for (int descriptor : {server->descriptor(), (*client)->descriptor()}) {
    CHECK((fcntl(descriptor, F_GETFD) & FD_CLOEXEC));
    CHECK(option(descriptor, IPPROTO_TCP, TCP_NODELAY) == 1);
    CHECK(option(descriptor, SOL_SOCKET, SO_KEEPALIVE) == 1);
    CHECK(option(descriptor, IPPROTO_TCP, TCP_USER_TIMEOUT) == 0);
  }
}

TEST_CASE("a descriptor that is no stream socket cannot be adopted and stays open") {
  int ends[2];
  REQUIRE(pipe2(ends, O_CLOEXEC) == 0);
  CHECK_FALSE(adopt_stream(ends[0]));
  CHECK(fcntl(ends[0], F_GETFD) >= 0);
  close(ends[0]);
  close(ends[1]);
  CHECK_FALSE(adopt_stream(-1));
}

TEST_CASE("a Unix socket in the file system connects two sides") {
  char folder[] = "/tmp/gpuwire-unix-XXXXXX";
  REQUIRE(mkdtemp(folder));
  std::string path = std::string(folder) + "/socket";
  auto listening = listen_unix(path);
  REQUIRE(listening);
  auto client = connect_unix(path);
  REQUIRE(client);
  auto server = adopt_stream(accept4(*listening, nullptr, nullptr, SOCK_CLOEXEC));
  REQUIRE(server);
  std::byte out[1] = {std::byte{7}}, in[1] = {};
  iovec piece{out, 1};
  CHECK(send_all(**client, {&piece, 1}, std::chrono::seconds(120)).status == IoStatus::ok);
  CHECK(receive_all(*server, in, std::chrono::seconds(120)).status == IoStatus::ok);
  CHECK(in[0] == out[0]);
  CHECK_FALSE(listen_unix(path));
  CHECK_FALSE(connect_unix(std::string(200, 'x')));
  close(*listening);
  CHECK_FALSE(connect_unix(path));
  unlink(path.c_str());
  rmdir(folder);
}

TEST_CASE(
    "of a name's addresses one that does not answer leaves the others their time, and one that refuses costs none") {
  auto answers = TcpListener::listen({"127.0.0.1", 0});
  REQUIRE(answers);
  uint16_t port = (*answers)->endpoint().port;
  // Listens and takes nobody: its queue is full, so the kernel drops who comes, as a firewall does.
  int silent = socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0);
  sockaddr_in address{};
  address.sin_family = AF_INET;
  address.sin_addr.s_addr = htonl(0x7f000002);
  address.sin_port = htons(port);
  REQUIRE(bind(silent, reinterpret_cast<sockaddr*>(&address), sizeof address) == 0);
  REQUIRE(listen(silent, 0) == 0);
  std::vector<int> waiting;
  for (int i = 0; i < 8; ++i) {
    waiting.push_back(socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC | SOCK_NONBLOCK, 0));
    connect(waiting.back(), reinterpret_cast<sockaddr*>(&address), sizeof address);
  }
  auto connected =
      connect_first({{"127.0.0.3", port}, {"127.0.0.2", port}, {"127.0.0.1", port}}, std::chrono::seconds(4));
  CHECK(connected);
  auto nobody = connect_first({{"127.0.0.2", port}}, std::chrono::milliseconds(10));
  REQUIRE_FALSE(nobody);
  CHECK(nobody.error() == "no answer within 0.01 s");
  for (int one : waiting) close(one);
  close(silent);
}

TEST_CASE(
    "who is silent is asked after 5 s and lost after 15; what it does not take counts only without heartbeats, and "
    "never on loopback") {
  int pair[2] = {socket(AF_INET, SOCK_STREAM, 0), socket(AF_INET, SOCK_STREAM, 0)};
  for (auto [how, lost_ms] : {std::pair{LostPeer::is_the_end, kPeerLostMs},
                              {LostPeer::replaceable, kReplaceablePeerLostMs},
                              {LostPeer::by_heartbeat, 0}}) {
    notice_lost_peer(pair[0], how);
    CHECK(option(pair[0], IPPROTO_TCP, TCP_USER_TIMEOUT) == lost_ms);
    int idle = option(pair[0], IPPROTO_TCP, TCP_KEEPIDLE), interval = option(pair[0], IPPROTO_TCP, TCP_KEEPINTVL),
        probes = option(pair[0], IPPROTO_TCP, TCP_KEEPCNT);
    CHECK((idle + interval * probes) * 1000 == (how == LostPeer::is_the_end ? kPeerLostMs : kReplaceablePeerLostMs));
  }
  auto listener = TcpListener::listen({"127.0.0.1", 0});
  REQUIRE(listener);
  auto near = connect_tcp((*listener)->endpoint(), std::chrono::seconds(120));
  REQUIRE(near);
  CHECK(option((*near)->descriptor(), IPPROTO_TCP, TCP_USER_TIMEOUT) == 0);
  for (int one : pair) close(one);
}
