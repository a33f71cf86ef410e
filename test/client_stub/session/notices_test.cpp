#include <doctest/doctest.h>

#include <cstring>
#include <thread>

#include "test/client_stub/session/session_fixture.hpp"

using namespace gpuwire;
using namespace gpuwire::test;

namespace {

void send_completion(FakeServer& server, uint64_t sequence) {
  capnp::MallocMessageBuilder message;
  message.initRoot<schema::Completion>().setSequence(sequence);
  server.notice(wire::NoticeOrdinal::completion, message);
}

}  // namespace

TEST_CASE("notices come through while no call waits") {
  on_every_transport([](const PairKind& kind) {
    std::atomic<uint64_t> seen{0};
    Fixture fixture(kind.make(test_seed()), [](FakeServer& server) {
      REQUIRE(server.next());
      send_completion(server, 42);
      answer_all(server);
    });
    fixture.handler.on_notice = [&](wire::NoticeOrdinal ordinal, capnp::MessageReader& message) {
      CHECK(ordinal == wire::NoticeOrdinal::completion);
      seen = message.getRoot<schema::Completion>().getSequence();
      seen.notify_all();
    };
    CHECK(fixture.post(1) == CUDA_SUCCESS);
    seen.wait(0);
    CHECK(seen == 42);
  });
}

TEST_CASE("notices before a reply have been handled when the call returns") {
  on_every_transport([](const PairKind& kind) {
    Fixture fixture(kind.make(test_seed()), [](FakeServer& server) {
      while (server.next()) {
        for (int i = 0; i < 3; ++i) send_completion(server, server.header().sequence);
        server.reply(server.header().sequence);
      }
    });
    for (int i = 1; i <= 50; ++i) {
      CHECK(fixture.call(1) == CUDA_SUCCESS);
      CHECK(fixture.handler.notices == 3 * i);
    }
  });
}

TEST_CASE("copied data land where the handler says, and the rest of the stream stays whole") {
  on_every_transport([](const PairKind& kind) {
    std::vector<std::byte> sent(300'001), memory(sent.size());
    for (size_t i = 0; i < sent.size(); ++i) sent[i] = std::byte(i * 31);
    Fixture fixture(kind.make(test_seed()), [&](FakeServer& server) {
      REQUIRE(server.next());
      capnp::MallocMessageBuilder message;
      message.initRoot<schema::CopyData>().setLast(true);
      server.notice(wire::NoticeOrdinal::copy_data, message, sent);
      capnp::MallocMessageBuilder output;
      output.initRoot<schema::Output>().setDescriptor(1);
      server.notice(wire::NoticeOrdinal::output, output, std::as_bytes(std::span("hello", 5)));
      server.reply(server.header().sequence);
      answer_all(server);
    });
    fixture.handler.sink = {memory.data(), memory.size()};
    CHECK(fixture.call(1) == CUDA_SUCCESS);
    CHECK(fixture.handler.stored == 2);
    CHECK(memory == sent);
    CHECK(std::memcmp(fixture.handler.text.data(), "hello", 5) == 0);
    CHECK(fixture.call(2) == CUDA_SUCCESS);
  });
}

TEST_CASE("data that nobody wants are thrown away") {
  Fixture fixture(pair_kinds()[3].make(test_seed()), [&](FakeServer& server) {
    REQUIRE(server.next());
    capnp::MallocMessageBuilder message;
    message.initRoot<schema::CopyData>();
    server.notice(wire::NoticeOrdinal::copy_data, message, std::vector<std::byte>(200'000));
    server.reply(server.header().sequence);
    answer_all(server);
  });
  CHECK(fixture.call(1) == CUDA_SUCCESS);
  CHECK(fixture.handler.stored == 1);
}

TEST_CASE("a handler may post") {
  on_every_transport([](const PairKind& kind) {
    constexpr int kNotices = 200;
    int answers = 0;
    {
      Fixture fixture(kind.make(test_seed()), [&](FakeServer& server) {
        while (server.next()) {
          if (wire::FrameKind(server.header().kind) == wire::FrameKind::posted) {
            ++answers;
            continue;
          }
          for (int i = 0; i < kNotices; ++i) send_completion(server, 1);
          server.reply(server.header().sequence);
        }
      });
      fixture.handler.on_notice = [&](wire::NoticeOrdinal, capnp::MessageReader&) {
        CHECK(fixture.post(7) == CUDA_SUCCESS);
      };
      CHECK(fixture.call(1) == CUDA_SUCCESS);
      CHECK(fixture.call(2) == CUDA_SUCCESS);
    }
    CHECK(answers >= kNotices);
  });
}

TEST_CASE("the client acknowledges what it has taken over") {
  on_every_transport([](const PairKind& kind) {
    uint64_t acknowledged = 0, sent = 0;
    {
      Fixture fixture(kind.make(test_seed()), [&](FakeServer& server) {
        REQUIRE(server.next());
        while (server.sent_bytes() < wire::kAcknowledgeBytes) send_completion(server, 1);
        sent = server.sent_bytes();
        server.reply(server.header().sequence);
        answer_all(server);
        acknowledged = server.client_acknowledged();
      });
      CHECK(fixture.call(1) == CUDA_SUCCESS);
      CHECK(fixture.call(2) == CUDA_SUCCESS);
    }
    // These frames are short, and frames of the same read as the last acknowledged one may be acknowledged later.
    CHECK(acknowledged + 4 * wire::kAcknowledgeShortFrameBytes >= sent);
    CHECK(acknowledged <= sent + 4096);
  });
}
