#include "server/worker/channel.hpp"

#include <string>

#include <arpa/inet.h>
#include <doctest/doctest.h>
#include <netinet/in.h>
#include <sys/socket.h>
#include <unistd.h>

using namespace gpuwire::server;

namespace {

struct Pair {
  int ours = -1, theirs = -1;
  ~Pair() {
    ::close(ours);
    ::close(theirs);
  }
};

void connect_unix(Pair& pair) {
  int ends[2];
  REQUIRE(::socketpair(AF_UNIX, SOCK_STREAM, 0, ends) == 0);
  pair.ours = ends[0], pair.theirs = ends[1];
}

void connect_tcp(Pair& pair) {
  int listener = ::socket(AF_INET, SOCK_STREAM, 0);
  sockaddr_in address{};
  address.sin_family = AF_INET;
  address.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
  socklen_t bytes = sizeof address;
  REQUIRE(::bind(listener, reinterpret_cast<sockaddr*>(&address), bytes) == 0);
  REQUIRE(::listen(listener, 1) == 0);
  REQUIRE(::getsockname(listener, reinterpret_cast<sockaddr*>(&address), &bytes) == 0);
  pair.theirs = ::socket(AF_INET, SOCK_STREAM, 0);
  REQUIRE(::connect(pair.theirs, reinterpret_cast<sockaddr*>(&address), sizeof address) == 0);
  pair.ours = ::accept(listener, nullptr, nullptr);
  ::close(listener);
}

void exchange(Pair& pair, Channel& channel) {
  std::string text(1000, 'x');
  REQUIRE(::send(pair.theirs, text.data(), 300, 0) == 300);
  char in[1000];
  REQUIRE(channel.receive_bulk(in, 300) == 300);
  CHECK(channel.receive(in, sizeof in) == -1);  // nothing more; not counted
  iovec part{text.data(), text.size()};
  REQUIRE(channel.send(&part, 1) == 1000);
}

}  // namespace

TEST_CASE("what passes a channel is counted, and errors are not") {
  Pair pair;
  connect_unix(pair);
  LinkCounters counters;
  Channel channel(pair.ours);
  channel.count_into(&counters);
  exchange(pair, channel);
  exchange(pair, channel);
  channel.replied();
  CHECK(counters.bytes_in == 600);
  CHECK(counters.bytes_out == 2000);
  CHECK(counters.replies == 1);
  CHECK(counters.round_trip_us == 0);  // a Unix socket has none
}

TEST_CASE("a TCP channel knows its round trip") {
  Pair pair;
  connect_tcp(pair);
  LinkCounters counters;
  Channel channel(pair.ours);
  channel.count_into(&counters);
  exchange(pair, channel);
  CHECK(counters.round_trip_us > 0);
  CHECK(counters.round_trip_least_us == counters.round_trip_us);
}

TEST_CASE("a channel without counters counts nothing, and a moved one goes on counting") {
  Pair pair;
  connect_unix(pair);
  Channel channel(pair.ours);
  exchange(pair, channel);
  LinkCounters counters;
  channel.count_into(&counters);
  Channel moved(std::move(channel));
  exchange(pair, moved);
  CHECK(counters.bytes_in == 300);
  moved.count_into(nullptr);
  exchange(pair, moved);
  CHECK(counters.bytes_in == 300);
}
