// The path to a client's program, from the ends of its connection.
#include "server/worker/connection/peer_path.hpp"

#include <doctest/doctest.h>

#include "test/protocol/transport/pairs.hpp"

using namespace gpuwire;
using namespace gpuwire::server;
using link::Loss;
using transport::ConnectionEnd;

namespace {

constexpr Graces kGraces{.resume_ms = 300'000, .hang_up_ms = 20'000};

}  // namespace

TEST_CASE("only an end that nobody but the client's own system can have sent is the end of its program") {
  struct Row {
    Loss loss;
    uint32_t same_machine, direct, indirect;
  };
  constexpr uint32_t kEnded = 0, kShort = kGraces.hang_up_ms, kLong = kGraces.resume_ms;
  for (const Row& row : {Row{Loss::closed, kEnded, kEnded, kShort}, Row{Loss::reset, kEnded, kShort, kShort},
                         Row{Loss::broken, kLong, kLong, kLong}, Row{Loss::given_up, kLong, kLong, kLong}}) {
    CAPTURE(int(row.loss));
    CHECK(stay_ms(PeerPath::same_machine, row.loss, kGraces) == row.same_machine);
    CHECK(stay_ms(PeerPath::direct, row.loss, kGraces) == row.direct);
    CHECK(stay_ms(PeerPath::indirect, row.loss, kGraces) == row.indirect);
  }
  CHECK(stay_ms(PeerPath::indirect, Loss::closed, {.resume_ms = 5'000, .hang_up_ms = 20'000}) == 5'000);
}

TEST_CASE(
    "a way is direct when both ends name the client's end alike, and on one machine only when it is the same run of "
    "it") {
  const ConnectionEnd far{"192.0.2.7:41234", ""}, near{"127.0.0.1:41234", "run 1"};
  CHECK(way_of({}, far) == PeerPath::indirect);  // the connection was reset before the query
  CHECK(way_of({}, {}) == PeerPath::indirect);
  const ConnectionEnd bound{"unix:/run/gpuwire.sock", "run 1"};
  CHECK(way_of(bound, bound) == PeerPath::same_machine);
  CHECK(way_of(bound, {"unix:/tmp/proxy.sock", "run 1"}) ==
        PeerPath::indirect);  // the client has connected to another address
  CHECK(way_of(far, far) == PeerPath::direct);
  CHECK(way_of(near, near) == PeerPath::same_machine);
  CHECK(way_of(far, {"10.0.0.7:41234", ""}) == PeerPath::indirect);
  CHECK(way_of(far, {"192.0.2.7:41235", ""}) == PeerPath::indirect);
  CHECK(way_of(far, {}) == PeerPath::indirect);  // an older client
  CHECK(way_of(near, {"127.0.0.1:41234", "run 2"}) ==
        PeerPath::indirect);  // both ends of a tunnel have the same number
  CHECK(way_of(near, {"127.0.0.1:41234", ""}) == PeerPath::indirect);
}

TEST_CASE("both ends of a connection name its ends alike") {
  for (const auto& kind : test::pair_kinds()) {
    INFO(kind.name);
    auto ends = kind.make(1);
    ConnectionEnd own = transport::own_end_of(ends.first->descriptor());
    CHECK(own == transport::other_end_of(ends.second->descriptor(), transport::this_machine()));
    bool tcp = kind.name == "tcp" || kind.name == "tls";
    CHECK(own.address.empty() == (ends.first->descriptor() < 0));
    CHECK(own.machine.empty() == own.address.empty());
    if (tcp) CHECK(own.address.starts_with("127.0.0.1:"));
  }
}
