#include <doctest/doctest.h>
#include <fcntl.h>
#include <sys/socket.h>

#include "server/ipc/ipc_message.hpp"

using namespace gpuwire::server;

TEST_CASE("a message arrives whole, with its descriptor, which closes on exec") {
  OwnedDescriptor broker, worker;
  REQUIRE(open_ipc_message(broker, worker));
  int ends[2];
  REQUIRE(::socketpair(AF_UNIX, SOCK_STREAM, 0, ends) == 0);
  IpcMessage sent;
  sent.kind = IpcMessageKind::session;
  sent.number = 42;
  sent.id[15] = 7;
  sent.text = "127.0.0.1:4711";
  sent.socket.reset(ends[0]);
  OwnedDescriptor peer(ends[1]);
  REQUIRE(send_ipc_message(broker.get(), sent));
  IpcMessage got;
  REQUIRE(receive_ipc_message(worker.get(), true, got) == IpcMessageReceived::message);
  CHECK(got.kind == IpcMessageKind::session);
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
  REQUIRE(open_ipc_message(broker, worker));
  IpcMessage got;
  CHECK(receive_ipc_message(worker.get(), false, got) == IpcMessageReceived::none_yet);
  broker.reset();
  CHECK(receive_ipc_message(worker.get(), true, got) == IpcMessageReceived::closed);
  CHECK(!send_ipc_message(worker.get(), IpcMessage{}));
}

TEST_CASE("a text longer than the limit is cut") {
  OwnedDescriptor broker, worker;
  REQUIRE(open_ipc_message(broker, worker));
  IpcMessage sent;
  sent.text.assign(2 * kIpcMessageTextBytesMax, 'a');
  REQUIRE(send_ipc_message(worker.get(), sent));
  IpcMessage got;
  REQUIRE(receive_ipc_message(broker.get(), true, got) == IpcMessageReceived::message);
  CHECK(got.text.size() == kIpcMessageTextBytesMax);
}
