#include <doctest/doctest.h>

#include <atomic>
#include <cstring>
#include <numeric>
#include <random>
#include <thread>

#include "client_stub/session/outgoing.hpp"
#include "test/client_stub/session/session_fixture.hpp"

using namespace gpuwire;
using namespace gpuwire::test;

namespace {

std::vector<std::byte> random_bytes(size_t count, uint64_t seed) {
  std::mt19937_64 random(seed);
  std::vector<std::byte> bytes(count);
  for (auto& byte : bytes) byte = std::byte(random());
  return bytes;
}

// Sends received bulk back.
void echo(FakeServer& server) {
  while (server.next()) {
    auto bytes = server.bulk();
    if (wire::FrameKind(server.header().kind) == wire::FrameKind::called)
      server.reply(server.header().sequence, 0, bytes);
  }
}

}  // namespace

TEST_CASE("bulk of every size class goes there and back unharmed") {
  on_every_transport([](const PairKind& kind) {
    Fixture fixture(kind.make(test_seed()), echo);
    for (size_t bytes : {size_t(1), size_t(7), size_t(4096), wire::kPostedBulkBytesMax, wire::kPostedBulkBytesMax + 1,
                         size_t(3) << 20}) {
      INFO(bytes);
      auto there = random_bytes(bytes, bytes);
      std::vector<std::byte> back(bytes);
      CHECK(fixture.call(1, {there.data(), bytes}, {back.data(), bytes}) == CUDA_SUCCESS);
      CHECK(back == there);
    }
  });
}

TEST_CASE("the longest bulk there is goes over tcp both ways") {
  Fixture fixture(pair_kinds()[0].make(1), echo);
  auto there = random_bytes(wire::kBulkBytesMax, 1);
  std::vector<std::byte> back(there.size());
  CHECK(fixture.call(1, {there.data(), there.size()}, {back.data(), back.size()}) == CUDA_SUCCESS);
  CHECK(std::memcmp(back.data(), there.data(), there.size()) == 0);
}

TEST_CASE("posted bulk is the caller's again at once") {
  on_every_transport([](const PairKind& kind) {
    std::vector<std::vector<std::byte>> arrived;
    auto first = random_bytes(1001, 1), second = random_bytes(wire::kPostedBulkBytesMax, 2);
    {
      Fixture fixture(kind.make(test_seed()), [&](FakeServer& server) {
        while (server.next()) {
          arrived.push_back(server.bulk());
          if (wire::FrameKind(server.header().kind) == wire::FrameKind::called) server.reply(server.header().sequence);
        }
      });
      auto memory = first;
      CHECK(fixture.post(1, {memory.data(), memory.size()}) == CUDA_SUCCESS);
      memory = second;
      CHECK(fixture.post(2, {memory.data(), memory.size()}) == CUDA_SUCCESS);
      std::fill(memory.begin(), memory.end(), std::byte{0});
      CHECK(fixture.call(3) == CUDA_SUCCESS);
    }
    REQUIRE(arrived.size() == 3);
    CHECK(arrived[0] == first);
    CHECK(arrived[1] == second);
  });
}

TEST_CASE("kept bulk of every size class is posted whole, among frames with bulk of their own") {
  on_every_transport([](const PairKind& kind) {
    std::vector<std::vector<std::byte>> sent, arrived;
    {
      Fixture fixture(kind.make(test_seed()), [&](FakeServer& server) {
        while (server.next()) {
          arrived.push_back(server.bulk());
          if (wire::FrameKind(server.header().kind) == wire::FrameKind::called) server.reply(server.header().sequence);
        }
      });
      for (size_t bytes : {size_t(1), client::kInlineBulkBytesMax, client::kInlineBulkBytesMax + 1, size_t(130'001),
                           wire::kPostedBulkBytesMax, wire::kPostedBulkBytesMax + 1, size_t(1) << 20}) {
        sent.push_back(random_bytes(bytes, bytes));
        auto kept = fixture.session->keep(bytes);
        REQUIRE(kept);
        std::memcpy(kept.get(), sent.back().data(), bytes);
        CHECK(fixture.post(1, {.data = kept.get(), .bytes = bytes, .keeper = kept}) == CUDA_SUCCESS);
        sent.push_back(random_bytes(100, bytes + 1));
        CHECK(fixture.post(2, {sent.back().data(), sent.back().size()}) == CUDA_SUCCESS);
      }
      CHECK(fixture.call(3) == CUDA_SUCCESS);
    }
    sent.emplace_back();
    CHECK(arrived == sent);
  });
}

TEST_CASE("large bulk that stays may be posted, and is the caller's again when sending has finished") {
  on_every_transport([](const PairKind& kind) {
    constexpr int kPosted = 3;
    std::vector<std::vector<std::byte>> arrived;
    auto original = random_bytes(size_t(5) << 20, 7);
    std::atomic<bool> reading{false};
    {
      Fixture fixture(kind.make(test_seed()), [&](FakeServer& server) {
        reading.wait(false);
        while (server.next()) {
          arrived.push_back(server.bulk());
          if (wire::FrameKind(server.header().kind) == wire::FrameKind::called) server.reply(server.header().sequence);
        }
      });
      auto memory = original;
      CHECK(fixture.post(1, {memory.data(), memory.size()}) == CUDA_ERROR_INVALID_VALUE);
      for (uint32_t i = 0; i < kPosted; ++i)
        CHECK(fixture.post(i, {.data = memory.data(), .bytes = memory.size(), .stays = true}) == CUDA_SUCCESS);
      reading = true;
      reading.notify_all();
      fixture.session->finish_sending();
      std::fill(memory.begin(), memory.end(), std::byte{0});
      CHECK(fixture.call(9) == CUDA_SUCCESS);
    }
    REQUIRE(arrived.size() == kPosted + 1);
    for (int i = 0; i < kPosted; ++i) CHECK(arrived[size_t(i)] == original);
  });
}

TEST_CASE("sending has finished when the session has ended") {
  Fixture fixture(pair_kinds()[0].make(1), [](FakeServer&) {});
  auto memory = random_bytes(size_t(40) << 20, 8);
  for (uint32_t i = 0; i < 3; ++i) fixture.post(i, {.data = memory.data(), .bytes = memory.size(), .stays = true});
  fixture.session->close();
  fixture.session->finish_sending();
  std::fill(memory.begin(), memory.end(), std::byte{0});
}

TEST_CASE("pitched bulk is gathered when it is sent and scattered when it comes") {
  on_every_transport([](const PairKind& kind) {
    Fixture fixture(kind.make(test_seed()), echo);
    for (size_t bytes : {size_t(1000), size_t(700'000)}) {
      auto there = random_bytes(bytes, 3);
      std::vector<std::byte> back(bytes);
      size_t gathered = 0;
      std::function<void(size_t, std::span<std::byte>)> gather = [&](size_t offset, std::span<std::byte> out) {
        gathered += out.size();
        std::memcpy(out.data(), there.data() + offset, out.size());
      };
      std::function<void(size_t, std::span<const std::byte>)> scatter = [&](size_t offset,
                                                                            std::span<const std::byte> piece) {
        std::memcpy(back.data() + offset, piece.data(), piece.size());
      };
      CHECK(fixture.call(1, {.bytes = bytes, .gather = &gather}, {.bytes = bytes, .scatter = &scatter}) ==
            CUDA_SUCCESS);
      CHECK(back == there);
      CHECK(gathered == bytes);
    }
  });
}

TEST_CASE("a reply of success with fewer bytes than were asked for ends the session, and one of failure does not") {
  on_every_transport([](const PairKind& kind) {
    for (size_t brings : {size_t(0), size_t(9)}) {
      Fixture fixture(kind.make(test_seed()), [&](FakeServer& server) {
        REQUIRE(server.next());
        server.reply(server.header().sequence, CUDA_ERROR_INVALID_VALUE);
        REQUIRE(server.next());
        server.reply(server.header().sequence, CUDA_SUCCESS, std::vector<std::byte>(brings));
        answer_all(server);
      });
      std::byte back[10] = {};
      CHECK(fixture.call(1, {}, {back, sizeof back}) == CUDA_ERROR_INVALID_VALUE);
      CHECK(fixture.call(2, {}, {back, sizeof back}) == CUDA_ERROR_DEVICE_UNAVAILABLE);
      CHECK(fixture.session->state() == CUDA_ERROR_DEVICE_UNAVAILABLE);
    }
  });
}

TEST_CASE("so does bulk that arrives before its thread waits for it") {
  on_every_transport([](const PairKind& kind) {
    Fixture fixture(kind.make(test_seed()), [&](FakeServer& server) {
      for (int i = 0; i < 2; ++i) {
        REQUIRE(server.next());
        server.reply(server.header().sequence, CUDA_SUCCESS, std::vector<std::byte>(4));
      }
      answer_all(server);
    });
    std::byte back[10] = {};
    client::Session::Slot slot;
    REQUIRE(fixture.session->begin(wire::FrameKind::called, 1, 0, 8, {}, slot) == CUDA_SUCCESS);
    fixture.session->expect_reply(slot, {back, sizeof back});
    fixture.session->commit(slot, 0);
    CHECK(fixture.call(2, {}, {back, 4}) == CUDA_SUCCESS);
    CHECK(client::finish_call<schema::Result>(*fixture.session, slot.sequence, [](schema::Result::Reader) {}) ==
          CUDA_ERROR_DEVICE_UNAVAILABLE);
  });
}

TEST_CASE("threads with large and small calls do not mix their bytes") {
  on_every_transport([](const PairKind& kind) {
    Fixture fixture(kind.make(test_seed()), echo);
    std::vector<std::thread> threads;
    std::atomic<int> wrong{0};
    for (int thread = 0; thread < 5; ++thread)
      threads.emplace_back([&, thread] {
        for (int round = 0; round < 6; ++round) {
          size_t bytes = thread % 2 ? size_t(500'000 + thread) : size_t(10 + thread);
          auto there = random_bytes(bytes, uint64_t(thread * 100 + round));
          std::vector<std::byte> back(bytes);
          if (fixture.post(1) != CUDA_SUCCESS) ++wrong;
          if (fixture.call(1, {there.data(), bytes}, {back.data(), bytes}) != CUDA_SUCCESS || back != there) ++wrong;
        }
      });
    for (auto& thread : threads) thread.join();
    CHECK(wrong == 0);
  });
}

TEST_CASE("many large pieces may be sent before the first is waited for") {
  on_every_transport([](const PairKind& kind) {
    constexpr size_t kPieces = 80, kBytes = wire::kPostedBulkBytesMax + 1001;
    Fixture fixture(kind.make(test_seed()), echo);
    auto there = random_bytes(kBytes, 4);
    std::vector<std::vector<std::byte>> back(kPieces, std::vector<std::byte>(kBytes));
    std::vector<uint64_t> sequences;
    for (size_t i = 0; i < kPieces; ++i) {
      client::Session::Slot slot;
      REQUIRE(fixture.session->begin(wire::FrameKind::called, 1, 0, 1, {there.data(), kBytes}, slot) == CUDA_SUCCESS);
      sequences.push_back(slot.sequence);
      fixture.session->expect_reply(slot, {back[i].data(), kBytes});
      fixture.session->commit(slot, 0);
    }
    for (uint64_t sequence : sequences)
      CHECK(fixture.session->wait(sequence, [](void*, capnp::MessageReader&) { return CUDA_SUCCESS; }, nullptr, {}) ==
            CUDA_SUCCESS);
    size_t wrong = 0;
    for (auto& bytes : back) wrong += bytes != there;
    CHECK(wrong == 0);
  });
}

TEST_CASE("an early reply does not give the caller its memory back before it is sent") {
  // The server answers before it reads the bulk, as after an error.
  on_every_transport([](const PairKind& kind) {
    auto there = random_bytes(2'000'003, 5);
    std::vector<std::byte> arrived;
    {
      Fixture fixture(kind.make(test_seed()), [&](FakeServer& server) {
        REQUIRE(server.next());
        server.reply(server.header().sequence, CUDA_ERROR_INVALID_VALUE);
        arrived = server.bulk();
        answer_all(server);
      });
      auto memory = there;
      CHECK(fixture.call(1, {memory.data(), memory.size()}) == CUDA_ERROR_INVALID_VALUE);
      std::fill(memory.begin(), memory.end(), std::byte{0});
      CHECK(fixture.call(2) == CUDA_SUCCESS);
    }
    CHECK(arrived == there);
  });
}
