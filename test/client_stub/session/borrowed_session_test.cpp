// A session by the code of the built libcuda.so.1, used by a program with a C++ library of its own, like
// libnvidia-ml.so.1 and gpuwire-info.
#include "client_stub/session/borrowed_session.hpp"

#include <doctest/doctest.h>

#include <poll.h>

#include "client_stub/session/call.hpp"
#include "protocol/transport/stream.hpp"
#include "protocol/transport/tcp.hpp"
#include "schema/session.capnp.h"
#include "test/client_stub/session/fake_server.hpp"

using namespace gpuwire;

namespace {

std::string g_library = GPUWIRE_TEST_LIBCUDA;

class NoNotices final : public client::NoticeHandler {
 public:
  void notice(wire::NoticeOrdinal, capnp::MessageReader&) override {}
  client::BulkSink bulk_for(wire::NoticeOrdinal, capnp::MessageReader&, size_t) override { return {}; }
  void bulk_stored(wire::NoticeOrdinal, capnp::MessageReader&, std::span<const std::byte>) override {}
  void ended(CUresult, std::string_view) override {}
};

// A scripted server, and a session with it.
struct Borrowed {
  explicit Borrowed(test::FakeServer::Serve serve)
      : listener(std::move(*transport::TcpListener::listen({"127.0.0.1", 0}))) {
    std::thread accepting([&] {
      pollfd ready{listener->descriptor(), POLLIN, 0};
      poll(&ready, 1, 120'000);
      server =
          std::make_unique<test::FakeServer>(transport::adopt_stream(listener->accept().descriptor), std::move(serve));
    });
    result =
        client::Session::connect("127.0.0.1:" + std::to_string(listener->endpoint().port), notices, session, error);
    accepting.join();
  }
  ~Borrowed() { session.reset(); }

  CUresult ping() {
    return client::call<schema::Result, schema::Result>(
        *session, uint32_t(wire::SessionOrdinal::ping), 0, client::message_words<schema::Result>(), [](auto) {},
        [](auto) {});
  }

  NoNotices notices;
  std::unique_ptr<transport::TcpListener> listener;
  std::unique_ptr<test::FakeServer> server;
  std::unique_ptr<client::Session> session;
  std::string error;
  CUresult result = CUDA_ERROR_UNKNOWN;
};

}  // namespace

std::string client::session_library() { return g_library; }

TEST_CASE("calls from outside of the library are answered") {
  Borrowed borrowed([](test::FakeServer& server) {
    while (server.next()) server.reply(server.header().sequence);
  });
  REQUIRE_MESSAGE(borrowed.result == CUDA_SUCCESS, borrowed.error);
  CHECK(borrowed.session->facts().devices.size() == 2);
  for (int i = 0; i < 10; ++i) CHECK(borrowed.ping() == CUDA_SUCCESS);
}

TEST_CASE("a reply that cannot be read is an error: the exception of one C++ library is caught by the other") {
  Borrowed borrowed([](test::FakeServer& server) {
    while (server.next()) {
      capnp::MallocMessageBuilder text;
      text.setRoot(capnp::Text::Reader("where a structure should be"));
      server.reply(server.header().sequence, text);
    }
  });
  REQUIRE_MESSAGE(borrowed.result == CUDA_SUCCESS, borrowed.error);
  CHECK(borrowed.ping() != CUDA_SUCCESS);
  CHECK(borrowed.ping() != CUDA_SUCCESS);
  CHECK(borrowed.session->state() != CUDA_SUCCESS);
}

TEST_CASE("a library that is missing, or is not gpuwire's, is told") {
  NoNotices notices;
  std::unique_ptr<client::Session> session;
  std::string error;
  for (const char* library : {"/no/such/libcuda.so.1", "libm.so.6"}) {
    g_library = library;
    CHECK(client::Session::connect("127.0.0.1:1", notices, session, error) == CUDA_ERROR_SYSTEM_NOT_READY);
    CHECK_MESSAGE(error.find(library) != std::string::npos, error);
  }
  g_library = GPUWIRE_TEST_LIBCUDA;
}
