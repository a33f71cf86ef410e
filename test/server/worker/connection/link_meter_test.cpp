#include "server/worker/connection/link_meter.hpp"

#include <array>
#include <cstring>

#include <arpa/inet.h>
#include <doctest/doctest.h>
#include <netinet/in.h>
#include <sys/socket.h>
#include <unistd.h>

#include "protocol/transport/stream.hpp"
#include "schema/session.capnp.h"
#include "server/worker/connection/frame_source.hpp"
#include "server/worker/connection/link_outbox.hpp"

using namespace gpuwire;
using namespace gpuwire::server;

namespace {

struct Pair {
  int ours = -1, theirs = -1;
  ~Pair() { ::close(theirs); }
  std::unique_ptr<transport::Transport> take_ours() { return transport::adopt_stream(ours); }
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

// Both halves of a link, with a meter.
struct Halves {
  Halves(Pair& pair, LinkCounters* counters)
      : theirs(pair.theirs),
        link(pair.take_ours()),
        meter(link, counters),
        source(link, meter, 0),
        outbox(link, meter) {}

  // Receives 332 bytes and sends one reply; returns the reply's bytes.
  size_t exchange() {
    wire::FrameHeader header{.kind = uint8_t(wire::FrameKind::posted), .sequence = ++sequence, .bulk_bytes = 300};
    std::array<std::byte, sizeof header + 300> frame{};
    std::memcpy(frame.data(), &header, sizeof header);
    REQUIRE(::send(theirs, frame.data(), frame.size(), 0) == ssize_t(frame.size()));
    REQUIRE(source.next() == FrameSource::Next::frame);
    std::array<std::byte, 300> bulk;
    REQUIRE(source.read(bulk));
    capnp::MallocMessageBuilder message(64);
    message.initRoot<schema::Result>();
    outbox.reply(sequence, message, std::span(frame).first(100));
    return sizeof header + message.getSegmentsForOutput()[0].asBytes().size() + 100;
  }

  int theirs;
  link::Link link;
  LinkMeter meter;
  FrameSource source;
  LinkOutbox outbox;
  uint64_t sequence = 0;
};

}  // namespace

TEST_CASE("bytes that pass a link are counted") {
  Pair pair;
  connect_unix(pair);
  LinkCounters counters;
  Halves halves(pair, &counters);
  size_t reply = halves.exchange();
  halves.exchange();
  CHECK(counters.bytes_in == 664);
  CHECK(counters.bytes_out == 2 * reply);
  CHECK(counters.replies == 2);
  CHECK(counters.round_trip_us == 0);  // a Unix socket has none
}

TEST_CASE("over TCP the round trip is known") {
  Pair pair;
  connect_tcp(pair);
  LinkCounters counters;
  Halves halves(pair, &counters);
  halves.exchange();
  CHECK(counters.round_trip_us > 0);
  CHECK(counters.round_trip_least_us == counters.round_trip_us);
}

TEST_CASE("without counters nothing is counted") {
  Pair pair;
  connect_unix(pair);
  Halves halves(pair, nullptr);
  CHECK(halves.exchange() > 0);
}
