#include <doctest/doctest.h>

#include <iterator>
#include <map>
#include <thread>

#include "test/client_stub/session/session_fixture.hpp"

using namespace gpuwire;
using namespace gpuwire::test;

TEST_CASE("the server's facts from the start are known afterwards") {
  Fixture fixture(pair_kinds()[2].make(1), answer_all);
  const auto& facts = fixture.session->facts();
  CHECK(facts.address == "test:1");
  CHECK(facts.driver_name == "fake driver");
  CHECK(facts.driver_version == 13000);
  REQUIRE(facts.devices.size() == 2);
  CHECK(facts.devices[0].name == "first fake device");
  CHECK(facts.devices[0].attributes == std::vector<int32_t>{0, 1024});
  CHECK(fixture.session->state() == CUDA_SUCCESS);
}

TEST_CASE("a called call returns the server's result") {
  on_every_transport([](const PairKind& kind) {
    Fixture fixture(kind.make(test_seed()), [](FakeServer& server) {
      REQUIRE(server.next());
      server.reply(server.header().sequence, CUDA_ERROR_INVALID_VALUE);
      answer_all(server);
    });
    CHECK(fixture.call(1) == CUDA_ERROR_INVALID_VALUE);
    CHECK(fixture.call(2) == CUDA_SUCCESS);
    CHECK(fixture.session->stats().called == 2);
  });
}

TEST_CASE("posted calls arrive without anybody waiting or flushing") {
  on_every_transport([](const PairKind& kind) {
    std::atomic<int> arrived{0};
    Fixture fixture(kind.make(test_seed()), [&](FakeServer& server) {
      for (int i = 0; i < 3 && server.next(); ++i) ++arrived;
      arrived.notify_all();
      answer_all(server);
    });
    for (int i = 0; i < 3; ++i) CHECK(fixture.post(1) == CUDA_SUCCESS);
    for (int seen = arrived; seen != 3; seen = arrived) arrived.wait(seen);
    CHECK(fixture.session->stats().posted == 3);
  });
}

// Returns a code that differs from the neighbouring calls' codes.
CUresult code_of(uint64_t count) {
  constexpr CUresult kCodes[] = {CUDA_ERROR_INVALID_VALUE,   CUDA_ERROR_OUT_OF_MEMORY,  CUDA_ERROR_NOT_INITIALIZED,
                                 CUDA_ERROR_DEINITIALIZED,   CUDA_ERROR_NO_DEVICE,      CUDA_ERROR_INVALID_IMAGE,
                                 CUDA_ERROR_INVALID_CONTEXT, CUDA_ERROR_INVALID_HANDLE, CUDA_ERROR_ILLEGAL_STATE,
                                 CUDA_ERROR_NOT_FOUND,       CUDA_ERROR_NOT_READY,      CUDA_ERROR_ILLEGAL_ADDRESS,
                                 CUDA_ERROR_LAUNCH_FAILED};
  return kCodes[count % std::size(kCodes)];
}

TEST_CASE("the stream of calls has the order of the calls, over eight threads") {
  on_every_transport([](const PairKind& kind) {
    constexpr uint64_t kThreads = 8, kCalls = 300;
    std::map<uint64_t, uint64_t> last;
    bool ordered = true;
    uint64_t frames = 0;
    {
      Fixture fixture(kind.make(test_seed()), [&](FakeServer& server) {
        while (server.next()) {
          uint64_t number = number_in(server), thread = number >> 32, count = number & 0xffffffff;
          ordered &= last[thread] + 1 == count;
          last[thread] = count;
          ++frames;
          if (wire::FrameKind(server.header().kind) == wire::FrameKind::called)
            server.reply(server.header().sequence, code_of(count));
        }
      });
      std::vector<std::thread> threads;
      std::atomic<int> wrong{0};
      for (uint64_t thread = 0; thread < kThreads; ++thread)
        threads.emplace_back([&, thread] {
          for (uint64_t count = 1; count <= kCalls; ++count) {
            uint64_t number = thread << 32 | count;
            bool called = (count + thread) % 5 == 0;
            CUresult expected = called ? code_of(count) : CUDA_SUCCESS;
            if ((called ? fixture.call(number) : fixture.post(number)) != expected) ++wrong;
          }
        });
      for (auto& thread : threads) thread.join();
      CHECK(wrong == 0);
      CHECK(fixture.session->last_sequence() == kThreads * kCalls);
    }
    CHECK(ordered);
    CHECK(frames == kThreads * kCalls);
  });
}

TEST_CASE("replies may overtake each other") {
  on_every_transport([](const PairKind& kind) {
    constexpr int kThreads = 6;
    Fixture fixture(kind.make(test_seed()), [](FakeServer& server) {
      for (int round = 0; round < 20; ++round) {
        std::vector<std::pair<uint64_t, uint64_t>> calls;
        for (int i = 0; i < kThreads; ++i) {
          REQUIRE(server.next());
          calls.emplace_back(server.header().sequence, number_in(server));
        }
        for (auto call = calls.rbegin(); call != calls.rend(); ++call) server.reply(call->first, code_of(call->second));
      }
      answer_all(server);
    });
    std::vector<std::thread> threads;
    std::atomic<int> wrong{0};
    for (int thread = 0; thread < kThreads; ++thread)
      threads.emplace_back([&, thread] {
        for (int round = 0; round < 20; ++round)
          if (fixture.call(uint64_t(100 + thread)) != code_of(uint64_t(100 + thread))) ++wrong;
      });
    for (auto& thread : threads) thread.join();
    CHECK(wrong == 0);
  });
}

TEST_CASE("several calls may be under way before the first is waited for") {
  on_every_transport([](const PairKind& kind) {
    Fixture fixture(kind.make(test_seed()), answer_all);
    std::vector<uint64_t> sequences;
    for (int i = 0; i < 10; ++i) {
      client::Session::Slot slot;
      REQUIRE(fixture.session->begin(wire::FrameKind::called, 1, 0, 8, {}, slot) == CUDA_SUCCESS);
      sequences.push_back(slot.sequence);
      fixture.session->expect_reply(slot, {});
      fixture.session->commit(slot, 0);
    }
    int read = 0;
    for (auto sequence = sequences.rbegin(); sequence != sequences.rend(); ++sequence)
      CHECK(fixture.session->wait(*sequence,
                                  [](void* user, capnp::MessageReader&) {
                                    ++*static_cast<int*>(user);
                                    return CUDA_SUCCESS;
                                  },
                                  &read, {}) == CUDA_SUCCESS);
    CHECK(read == 10);
  });
}

TEST_CASE("a call that is never answered ends the session after the time that calls have, whoever waits and receives") {
  on_every_transport([](const PairKind& kind) {
    Fixture fixture(kind.make(test_seed()), [&](FakeServer& server) {
      while (server.next()) {}
    });
    static_cast<client::ConnectedSession&>(*fixture.session).limit_answers(std::chrono::milliseconds(5));
    std::vector<std::thread> threads;
    std::atomic<int> given_up{0};
    for (int i = 0; i < 3; ++i)
      threads.emplace_back([&] { given_up += fixture.call(1) == CUDA_ERROR_DEVICE_UNAVAILABLE; });
    for (std::thread& thread : threads) thread.join();
    CHECK(given_up == 3);
    CHECK(fixture.session->state() == CUDA_ERROR_DEVICE_UNAVAILABLE);
    REQUIRE(fixture.handler.ends == 1);
    CHECK(fixture.handler.end_reason.find("has had no answer for 0.005 s") != std::string::npos);
  });
}

TEST_CASE("a call that was set aside is waited for later, by another thread, and is no round trip") {
  on_every_transport([](const PairKind& kind) {
    std::atomic<bool> told{false};
    Fixture fixture(kind.make(test_seed()), [](FakeServer& server) {
      REQUIRE(server.next());  // the posted frames
      REQUIRE(server.next());
      const uint64_t aside = server.header().sequence;
      REQUIRE(server.next());
      server.reply(server.header().sequence, CUDA_SUCCESS);
      server.reply(aside, CUDA_ERROR_NOT_FOUND);
      capnp::MallocMessageBuilder completion;
      completion.initRoot<schema::Completion>();
      server.notice(wire::NoticeOrdinal::completion, completion);
      answer_all(server);
    });
    fixture.handler.on_notice = [&](wire::NoticeOrdinal, capnp::MessageReader&) {
      told = true;
      told.notify_all();
    };
    CHECK(fixture.post(1) == CUDA_SUCCESS);
    client::Session::Slot slot;
    REQUIRE(fixture.session->begin(wire::FrameKind::called, 1, 0, 8, {}, slot) == CUDA_SUCCESS);
    fixture.session->expect_reply(slot, {});
    fixture.session->commit(slot, 0);
    fixture.session->set_aside(slot.sequence);
    CHECK(fixture.call(2) == CUDA_SUCCESS);
    told.wait(false);  // no thread calls: the session's own thread has read the reply and the notice behind it
    CHECK(fixture.session->stats().waits == 1);
    CHECK(fixture.call(3) == CUDA_SUCCESS);
    CUresult result = CUDA_SUCCESS;
    std::thread([&] {
      CHECK(client::finish_call<schema::Result>(*fixture.session, slot.sequence, [&](schema::Result::Reader reply) {
              result = CUresult(reply.getResult());
            }) == CUDA_ERROR_NOT_FOUND);
    }).join();
    CHECK(result == CUDA_ERROR_NOT_FOUND);
    CHECK(fixture.session->stats().waits == 2);
  });
}

TEST_CASE("a call that was set aside before its answer came is waited for like any other, or ends with the session") {
  on_every_transport([](const PairKind& kind) {
    Fixture fixture(kind.make(test_seed()), [](FakeServer& server) {
      REQUIRE(server.next());
      server.reply(server.header().sequence, CUDA_ERROR_NOT_FOUND);
      REQUIRE(server.next());  // and then closes
    });
    uint64_t sequences[2] = {};
    for (uint64_t& sequence : sequences) {
      client::Session::Slot slot;
      REQUIRE(fixture.session->begin(wire::FrameKind::called, 1, 0, 8, {}, slot) == CUDA_SUCCESS);
      sequence = slot.sequence;
      fixture.session->expect_reply(slot, {});
      fixture.session->commit(slot, 0);
      fixture.session->set_aside(sequence);
    }
    auto read = [](schema::Result::Reader) {};
    CHECK(client::finish_call<schema::Result>(*fixture.session, sequences[0], read) == CUDA_ERROR_NOT_FOUND);
    CHECK(client::finish_call<schema::Result>(*fixture.session, sequences[1], read) == CUDA_ERROR_DEVICE_UNAVAILABLE);
  });
}

TEST_CASE("a message that its writer cannot finish is dropped, and the stream goes on without it") {
  Fixture fixture(pair_kinds()[2].make(1), answer_all);
  CHECK(client::post<schema::Launch>(*fixture, 10, 0, 4, [](auto launch) { launch.initParameters(4096); }) ==
        CUDA_ERROR_UNKNOWN);
  CHECK(client::call<schema::Launch, schema::Result>(
            *fixture, 10, 0, 4, [](auto launch) { launch.initParameters(4096); }, [](auto) {}) == CUDA_ERROR_UNKNOWN);
  CHECK(fixture.call(1) == CUDA_SUCCESS);
  CHECK(fixture.session->last_sequence() == 1);
}

TEST_CASE("calls beyond the limits of the wire are refused and do no harm") {
  Fixture fixture(pair_kinds()[2].make(1), answer_all);
  client::Session::Slot slot;
  CHECK(fixture.session->begin(wire::FrameKind::called, 1, 0, wire::kMessageWordsMax + 1, {}, slot) ==
        CUDA_ERROR_INVALID_VALUE);
  CHECK(fixture.session->begin(wire::FrameKind::called, 1, 0, 1, {.data = nullptr, .bytes = wire::kBulkBytesMax + 1},
                               slot) == CUDA_ERROR_INVALID_VALUE);
  // Posted bulk has to fit into the window, because the caller may reuse its memory at once.
  CHECK(fixture.session->begin(wire::FrameKind::posted, 1, 0, 1,
                               {.data = nullptr, .bytes = wire::kPostedBulkBytesMax + 1},
                               slot) == CUDA_ERROR_INVALID_VALUE);
  CHECK(fixture.call(1) == CUDA_SUCCESS);
}

TEST_CASE("a session that only calls has no thread of its own") {
  auto count_threads = [] {
    FILE* status = fopen("/proc/self/status", "r");
    char line[256];
    int threads = 0;
    while (fgets(line, sizeof line, status)) sscanf(line, "Threads: %d", &threads);
    fclose(status);
    return threads;
  };
  Fixture fixture(pair_kinds()[1].make(1), answer_all);
  int before = count_threads();
  CHECK(fixture.call(1) == CUDA_SUCCESS);
  CHECK(count_threads() == before);
  CHECK(fixture.post(1) == CUDA_SUCCESS);
  CHECK(count_threads() == before + 1);
}
