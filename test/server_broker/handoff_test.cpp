#include <doctest/doctest.h>
#include <fcntl.h>
#include <sys/socket.h>

#include "server/broker/handoff.hpp"

using namespace gpuwire::server;

TEST_CASE("a message arrives whole, with its descriptor, which closes on exec") {
  OwnedDescriptor broker, worker;
  REQUIRE(open_handoff(broker, worker));
  int ends[2];
  REQUIRE(::socketpair(AF_UNIX, SOCK_STREAM, 0, ends) == 0);
  Handoff sent;
  sent.kind = HandoffKind::session;
  sent.number = 42;
  sent.id[15] = 7;
  sent.text = "127.0.0.1:4711";
  sent.socket.reset(ends[0]);
  OwnedDescriptor peer(ends[1]);
  REQUIRE(send_handoff(broker.get(), sent));
  Handoff got;
  REQUIRE(receive_handoff(worker.get(), true, got) == HandoffReceived::message);
  CHECK(got.kind == HandoffKind::session);
  CHECK(got.number == 42);
  CHECK(got.id[15] == 7);
  CHECK(got.text == "127.0.0.1:4711");
  REQUIRE(got.socket);
  CHECK((::fcntl(got.socket.get(), F_GETFD) & FD_CLOEXEC) != 0);
  char byte = 'x';
  CHECK(::write(got.socket.get(), &byte, 1) == 1);
  CHECK(::read(peer.get(), &byte, 1) == 1);
}

TEST_CASE("nothing there is not the end, and the end is not a message") {
  OwnedDescriptor broker, worker;
  REQUIRE(open_handoff(broker, worker));
  Handoff got;
  CHECK(receive_handoff(worker.get(), false, got) == HandoffReceived::none_yet);
  broker.reset();
  CHECK(receive_handoff(worker.get(), true, got) == HandoffReceived::closed);
  CHECK(!send_handoff(worker.get(), Handoff{}));
}

TEST_CASE("a text longer than the limit is cut") {
  OwnedDescriptor broker, worker;
  REQUIRE(open_handoff(broker, worker));
  Handoff sent;
  sent.text.assign(2 * kHandoffTextBytesMax, 'a');
  REQUIRE(send_handoff(worker.get(), sent));
  Handoff got;
  REQUIRE(receive_handoff(broker.get(), true, got) == HandoffReceived::message);
  CHECK(got.text.size() == kHandoffTextBytesMax);
}
