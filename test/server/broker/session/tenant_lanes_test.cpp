#include <doctest/doctest.h>

#include "server/broker/limits.hpp"
#include "server/broker/session/tenant_lanes.hpp"

using namespace gpuwire;
using namespace gpuwire::server;

namespace {

struct Server {
  TenantLanes lanes;
  uint64_t last = 0;

  // Returns the number of lanes of a new session of the tenant that may have `most`.
  unsigned begin(SessionRecord& session, const std::string& tenant, unsigned most, uint32_t grace_ms = 1000) {
    session.number = scheduler::SessionId(++last);
    session.tenant = tenant;
    SessionSpec spec;
    spec.resume_grace_ms = grace_ms;
    spec.lanes_max = most;
    ipc::SessionDescriptors descriptors;
    REQUIRE(lanes.attach(session, spec, descriptors));
    return spec.lanes_max;
  }
};

}  // namespace

TEST_CASE("a tenant that has all the lanes it may have begins further sessions without, and takes none of another's") {
  Server server;
  std::vector<SessionRecord> of_anna(kLanesPerTenantMax / 4 + 10);
  unsigned given = 0;
  for (size_t i = 0; i < of_anna.size(); ++i) {
    unsigned lanes = server.begin(of_anna[i], "anna", 4);
    CHECK(lanes == (i < kLanesPerTenantMax / 4 ? 4 : 0));
    given += lanes;
  }
  CHECK(given == kLanesPerTenantMax);
  CHECK(server.lanes.held_by("anna") == kLanesPerTenantMax);
  SessionRecord of_ben;
  CHECK(server.begin(of_ben, "ben", 4) == 4);

  // A session's lanes return to its tenant when it is over, only once; a session without lanes returns none.
  server.lanes.ended(of_anna.back());
  CHECK(server.lanes.held_by("anna") == kLanesPerTenantMax);
  server.lanes.ended(of_anna[0]);
  server.lanes.ended(of_anna[0]);
  CHECK(server.lanes.held_by("anna") == kLanesPerTenantMax - 4);
  SessionRecord again;
  CHECK(server.begin(again, "anna", 8) == 4);
  CHECK(server.lanes.held_by("ben") == 4);
}

TEST_CASE("a session is given what is left of its tenant's lanes, but not a single one, which would be of no use") {
  Server server;
  SessionRecord some, next, last;
  CHECK(server.begin(some, "anna", kLanesPerTenantMax - 3) == kLanesPerTenantMax - 3);
  CHECK(server.begin(next, "anna", 2) == 2);
  CHECK(server.begin(last, "anna", 4) == 0);
  CHECK(server.lanes.held_by("anna") == kLanesPerTenantMax - 1);
}

TEST_CASE("sessions that end with their connection, or may have no lanes, hold none") {
  Server server;
  SessionRecord one, other;
  CHECK(server.begin(one, "anna", 4, 0) == 0);
  CHECK(server.begin(other, "anna", 1) == 0);
  CHECK(server.lanes.held_by("anna") == 0);
}

TEST_CASE("the next broker counts the lanes that sessions were given by the one before") {
  Server before, after;
  SessionRecord session, none;
  before.begin(session, "anna", 4);
  before.begin(none, "anna", 0);
  for (const SessionRecord* one : {&session, &none}) {
    KeptSession kept;
    before.lanes.note(*one, kept);
    KeptEntry entry;
    REQUIRE(after.lanes.adopt(*one, kept, entry));
  }
  CHECK(after.lanes.held_by("anna") == 4);
  after.lanes.ended(session);
  CHECK(after.lanes.held_by("anna") == 0);
}
