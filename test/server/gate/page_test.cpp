#include <fcntl.h>
#include <sys/mman.h>

#include "fixture.hpp"
#include "server/gate/copy_budget.hpp"
#include "server/gate/page/session_page.hpp"

using namespace gpuwire::server;
using namespace std::chrono_literals;

TEST_CASE("both ends of a page see the same words") {
  auto ours = SharedPage<SessionPage>::create();
  REQUIRE(ours.has_value());
  auto theirs = SharedPage<SessionPage>::map(OwnedDescriptor(::dup(ours->descriptor())));
  REQUIRE(theirs.has_value());
  (*ours)->gate = 7;
  (*theirs)->busy_ns = 9;
  CHECK((*theirs)->gate == 7);
  CHECK((*ours)->busy_ns == 9);
}

TEST_CASE("nobody can take a page's memory away from under the other") {
  auto page = SharedPage<SessionPage>::create();
  REQUIRE(page.has_value());
  CHECK(::ftruncate(page->descriptor(), 0) != 0);
  CHECK(::ftruncate(page->descriptor(), 1 << 20) != 0);
}

TEST_CASE("a file that is no page of this version is refused with the reason") {
  CHECK(!SharedPage<SessionPage>::map(OwnedDescriptor(::open("/dev/null", O_RDWR | O_CLOEXEC))).has_value());
  OwnedDescriptor small(::memfd_create("test", MFD_CLOEXEC));
  REQUIRE(::ftruncate(small.get(), 16) == 0);
  auto refused = SharedPage<SessionPage>::map(std::move(small));
  REQUIRE(!refused.has_value());
  CHECK(refused.error().find("bytes") != std::string::npos);
  auto other = SharedPage<SessionPage>::create();
  (*other)->head.version = SessionPage::kVersion + 1;
  auto wrong = SharedPage<SessionPage>::map(OwnedDescriptor(::dup(other->descriptor())));
  REQUIRE(!wrong.has_value());
  CHECK(wrong.error().find("version") != std::string::npos);
}

TEST_CASE("a gate's word says open or closed and a bound that is never smaller than asked") {
  CHECK(GateWord::of(true, false, {}) == 0);
  CHECK(!GateWord{GateWord::of(true, true, {})}.unhindered());
  CHECK(!GateWord{GateWord::of(true, true, {})}.closed());
  CHECK(GateWord{GateWord::of(false, false, {})}.closed());
  CHECK(GateWord{GateWord::of(true, false, 500us)}.bound() == 500us);
  CHECK(GateWord{GateWord::of(true, false, 1ns)}.bound() == 1us);
  CHECK(GateWord{GateWord::of(true, false, 24h)}.bound().count() == GateWord::kBoundMaxUs);
}

TEST_CASE("copies within their budget do not wait, and those over it wait until it is theirs") {
  CopyBudget budget;
  PageTime now = 1s;
  CHECK(budget.take(uint64_t(1) << 40, 0, now) == 0ns);  // no budget
  CHECK(budget.take(1000, 1000, now += 1s) == 0ns);      // a full bucket
  CHECK(budget.take(100'000, 1000, now) == 0ns);         // on credit
  auto wait = budget.take(1000, 1000, now);
  CHECK(wait > 80ms);
  CHECK(wait < 101ms);
  CHECK(budget.take(1000, 1000, now + 200ms) == 0ns);
}
