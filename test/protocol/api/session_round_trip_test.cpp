// Every call and notice of the session's own: from the sender's fields through the words of the message, and back out
// of them.
#include <doctest/doctest.h>

#include <set>
#include <string>

#include "client_stub/session/call.hpp"
#include "protocol/cuda_abi/peer_code.hpp"
#include "test/protocol/api/session_round_trip.hpp"
#include "wire/session_frames.hpp"
#include "wire/session_messages.hpp"
#include "wire/session_structures.hpp"

namespace gpuwire::test {
namespace {

constexpr uint64_t kSeed = 20261122;
constexpr unsigned kRounds = 30;
constexpr unsigned kForgedReplies = 60;

TEST_CASE(
    "every call and notice of the session brings its fields across, in every way it can be sent, in as many words as "
    "were reserved") {
  MESSAGE("seed " << kSeed);
  std::vector<SentWay> ways = sent_ways();
  CHECK(ways.size() > 100);
  for (const SentWay& way : ways) {
    INFO(std::string(way.name));
    for (unsigned i = 0; i < kRounds; ++i) {
      SessionRound round(kSeed + i);
      way.run(round);
      CHECK_MESSAGE(round.found.names().empty(), round.found.names());
    }
  }
}

TEST_CASE("the table of frames has every call and notice, each once, and nothing else") {
  std::set<uint32_t> sent;
  for (const SentWay& way : sent_ways()) {
    if (!std::string_view(way.name).starts_with("notice ")) sent.insert(way.ordinal);
  }
  std::set<std::string> names;
  for (uint32_t ordinal = 0; ordinal < wire::kFirstDriverOrdinal; ++ordinal) {
    wire::SessionCallFacts call = wire::session_call(ordinal);
    CHECK((call.name != nullptr) == sent.contains(ordinal));
    CHECK(wire::visit_session_call(ordinal, [](auto) {}) == (call.name != nullptr));
    CHECK(wire::visit_notice(ordinal, [](auto) {}) == (wire::notice(ordinal).name != nullptr));
    if (call.name) CHECK(names.insert(call.name).second);
    CHECK(call.bulk_bytes_max <= wire::kBulkBytesMax);
    CHECK(call.reply_bulk_bytes_max <= wire::kBulkBytesMax);
  }
  CHECK(wire::bulk_bytes_max(wire::FrameKind::called, wire::kFirstDriverOrdinal) == 0);
  CHECK(wire::bulk_bytes_max(wire::FrameKind::acknowledge, 11) == 0);
  CHECK(wire::bulk_bytes_max(wire::FrameKind::posted, ~0u) == 0);
}

// Numbers of the wire never change: the ordinals that older peers know, a few of each kind.
static_assert(uint32_t(wire::SessionOrdinal::ping) == 1 && uint32_t(wire::SessionOrdinal::launch) == 10);
static_assert(uint32_t(wire::SessionOrdinal::region_share) == 55 &&
              uint32_t(wire::SessionOrdinal::management_query) == 90);
static_assert(uint32_t(wire::NoticeOrdinal::completion) == 1 && uint32_t(wire::NoticeOrdinal::graph_memory_data) == 20);

TEST_CASE("a message longer than messages may be is never begun with") {
  struct Long {
    static size_t words(size_t bytes) {
      wire::message::ModuleOffer message{.digest = {nullptr, bytes}};
      return client::words_max(message);
    }
  };
  CHECK(Long::words(32) < wire::kMessageWordsMax);
  CHECK(Long::words(size_t(wire::kMessageWordsMax) * 8) == wire::kMessageWordsMax + 1);
  CHECK(Long::words(~size_t(0) / 4) == wire::kMessageWordsMax + 1);
}

TEST_CASE("corrupted replies to the session's calls neither crash the client nor leave a call without a result") {
  for (const SentWay& way : sent_ways()) {
    INFO(std::string(way.name));
    SessionRound first(kSeed);
    way.run(first);
    const Words reply = first.session.reply;
    if (reply.empty()) continue;
    Source random(kSeed + way.ordinal);
    for (unsigned i = 0; i < kForgedReplies; ++i) {
      wire::visit_session_call(way.ordinal, [&](auto call) {
        Words forged = reply;
        if (i < reply.size()) forged.resize(i);
        else forged[random.bits() % forged.size()] = random.coin() ? random.bits() : random.bits() % 8;
        KeepingSession session;
        session.reply = forged;
        CUresult result = client::finish_call<typename decltype(call)::Reply>(session, 1, [](auto) {});
        CHECK(cuda_abi::from_peer(int32_t(result)) == result);
      });
    }
  }
}

}  // namespace
}  // namespace gpuwire::test
