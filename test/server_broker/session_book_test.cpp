#include "server/broker/session_book.hpp"

#include <doctest/doctest.h>

#include "server/broker/admission.hpp"
#include "server/broker/session_order.hpp"

#include <fcntl.h>

using namespace gpuwire;
using namespace gpuwire::server;
using Kind = SessionEvent::Kind;

namespace {

// An admission with two tenants whose sessions find a worker when the test says so.
struct Desk {
  TenantDirectory tenants{{{.name = "anna"}, {.name = "ben", .service_class = scheduler::ServiceClass::interactive}}};
  SessionBook book;
  std::vector<scheduler::SessionId> placed;
  std::vector<Kind> events;
  std::vector<AdmissionAnswer> answers;
  Admission admission{book, tenants, {.sessions_max = 2}, [this](scheduler::SessionId session) { placed.push_back(session); }};

  Desk() {
    book.observe([this](const SessionEvent& event) { events.push_back(event.kind); });
  }
  scheduler::SessionId ask(std::string tenant, bool management = false) {
    return admission.request({.tenant = std::move(tenant), .management = management},
                             [this](scheduler::SessionId, const AdmissionAnswer& answer) { answers.push_back(answer); });
  }
  const AdmissionRefused* refused() const { return answers.empty() ? nullptr : std::get_if<AdmissionRefused>(&answers.back()); }
};

}  // namespace

TEST_CASE("a session is in the book from its request to its end, and observers hear of it") {
  Desk desk;
  scheduler::SessionId session = desk.ask("ben");
  REQUIRE(desk.book.find(session));
  CHECK(desk.book.find(session)->service_class == scheduler::ServiceClass::interactive);
  CHECK(desk.book.find(session)->state == SessionState::starting);
  CHECK(desk.answers.empty());
  desk.admission.prepared(session);
  REQUIRE(desk.answers.size() == 1);
  CHECK(std::holds_alternative<AdmissionGranted>(desk.answers[0]));
  desk.book.begun(session, "a program");
  CHECK(desk.book.find(session)->state == SessionState::running);
  desk.admission.ended(session);
  desk.book.ended(session, 0, "the client left");
  CHECK_FALSE(desk.book.find(session));
  CHECK(desk.events == std::vector{Kind::admitted, Kind::begun, Kind::ended});
}

TEST_CASE("a tenant that is not known is refused, and so is every one after the end of the server has begun") {
  Desk desk;
  desk.ask("carl");
  REQUIRE(desk.refused());
  CHECK(desk.refused()->code == wire::RefusalCode::unauthorised);
  CHECK(desk.refused()->reason.find("carl") != std::string::npos);
  desk.ask("anna");
  desk.admission.close(wire::RefusalCode::shutting_down, "good night");
  REQUIRE(desk.answers.size() == 2);
  CHECK(desk.refused()->reason == "good night");
  desk.ask("anna");
  CHECK(desk.answers.size() == 3);
  CHECK(desk.book.all().empty());
}

TEST_CASE("the server's limit of sessions counts those of programs and those of queries apart") {
  Desk desk;
  scheduler::SessionId first = desk.ask("anna");
  desk.ask("ben");
  desk.ask("ben", true);
  CHECK(desk.placed.size() == 3);
  desk.ask("anna");
  REQUIRE(desk.refused());
  CHECK(desk.refused()->code == wire::RefusalCode::busy);
  desk.admission.cancel(first, "it left");
  desk.ask("anna");
  CHECK(desk.placed.size() == 4);
}

TEST_CASE("a tenant keeps its number when it goes from the configuration and comes back") {
  TenantDirectory tenants({{.name = "anna"}, {.name = "ben"}});
  scheduler::TenantId ben = tenants.find("ben")->id;
  tenants.replace({{.name = "carl"}, {.name = "anna"}});
  CHECK_FALSE(tenants.find("ben"));
  REQUIRE(tenants.find(ben));
  CHECK_FALSE(tenants.find(ben)->known);
  CHECK(tenants.find("carl")->id != ben);
  tenants.replace({{.name = "ben", .weight = 3}});
  REQUIRE(tenants.find("ben"));
  CHECK(tenants.find("ben")->id == ben);
  CHECK(tenants.find(ben)->settings.weight == 3);
}

TEST_CASE("descriptors of an order are found at their places, and those left out are none") {
  Handoff handoff;
  auto null = [] { return OwnedDescriptor(::open("/dev/zero", O_RDONLY | O_CLOEXEC)); };
  REQUIRE(attach(handoff, OrderDescriptor::tenant_page, null()));
  REQUIRE(attach(handoff, OrderDescriptor::client, null()));
  int page = handoff.more.back().get();
  CHECK(handoff.more.size() == 3);
  CHECK_FALSE(take(handoff, OrderDescriptor::session_page));
  CHECK_FALSE(take(handoff, OrderDescriptor::doorbell));
  CHECK(take(handoff, OrderDescriptor::tenant_page).get() == page);
  CHECK(take(handoff, OrderDescriptor::client));
  CHECK_FALSE(take(handoff, OrderDescriptor::client));
}
