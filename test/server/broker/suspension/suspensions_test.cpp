// Suspensions with a ledger, a suspender and workers of the test.
#include "server/broker/suspension/suspensions.hpp"

#include <optional>
#include <string>
#include <vector>

#include <doctest/doctest.h>

#include "test/server/broker/suspension/suspension_parts.hpp"

using namespace gpuwire::server;
using gpuwire::scheduler::SessionId;
using gpuwire::test::TestControl;
using gpuwire::test::TestMover;

namespace {

struct TestMemory final : SuspensionMemory {
  std::string why_not_released(const SessionRecord&) const override { return why; }
  uint64_t releasable_bytes(const SessionRecord&) const override { return bytes; }
  uint64_t releasable_bytes(const SessionRecord&, gpuwire::scheduler::DeviceIndex) const override { return bytes; }
  uint64_t away_bytes(const SessionRecord&, gpuwire::scheduler::DeviceIndex) const override { return bytes; }
  uint64_t held_bytes(gpuwire::scheduler::TenantId, gpuwire::scheduler::DeviceIndex) const override { return bytes; }
  MemoryShortage shortage(const SessionRecord&, gpuwire::scheduler::DeviceIndex, uint64_t) const override { return {}; }
  uint64_t release_memory(const SessionRecord&) override {
    ++released;
    return bytes;
  }
  void offer_memory() override { order += "offer "; }
  bool take_memory(const SessionRecord&) override {
    order += "take ";
    taken += room;
    return room;
  }
  std::string why;
  uint64_t bytes = 5u << 20;
  bool room = true;
  int released = 0, taken = 0;
  std::string order;
};

struct SuspensionFixture {
  boost::asio::io_context io;
  SessionRegistry registry;
  TestMemory memory;
  TestMover mover;
  TestControl control;
  uint64_t available = 0, tenant_max = 0, users_max = 0;
  std::string events;
  gpuwire::scheduler::Time now{};
  Suspensions suspensions{{.io = io,
                           .registry = registry,
                           .control = control,
                           .memory = memory,
                           .mover = mover,
                           .host_available = [this] { return available; },
                           .tenant_memory_max = [this](gpuwire::scheduler::TenantId) { return tenant_max; },
                           .users_memory_max = [this] { return users_max; },
                           .now = [this] { return now; }}};
  SuspenderProcess::Events suspender = suspensions.mover_events();
  SessionId session = begin();
  std::string said;  // to the administrator

  SuspensionFixture() {
    registry.observe([this](const SessionEvent& event) {
      if (event.kind == SessionEvent::Kind::suspended) events += "suspended ";
      if (event.kind == SessionEvent::Kind::resumed) events += "resumed ";
    });
  }
  SessionId begin() {
    SessionRecord record;
    record.tenant = "anna";
    record.devices = {0};
    record.worker_pid = 4711;
    const SessionId number = registry.add(record).number;
    registry.begun(number, "");
    return number;
  }
  Suspensions::Done hear() {
    return [this](const Suspensions::Answer& answer) { said += (answer ? *answer : "no: " + answer.error()) + "; "; };
  }
  void suspend() { suspensions.suspend(session, hear()); }
  void resume() { suspensions.resume(session, hear()); }
  void report(ipc::Message message) { CHECK(suspensions.on_message(*registry.find(session), message)); }
  void moved(ipc::MoveResult result, const std::string& why = {}) {
    suspender.moved({mover.orders.back().order, result, why});
  }
  void rest() {
    suspend();
    report(ipc::Quiet{});
    moved(ipc::MoveResult::done);
  }
  // Runs timers until the condition holds.
  template <class Condition>
  void await(Condition&& holds) {
    while (!holds()) {
      io.restart();
      io.run_one();
    }
  }
  SuspensionState state() const { return registry.find(session)->suspension; }
};

}  // namespace

TEST_CASE("an idle session is suspended, and returns with its client's next call") {
  SuspensionFixture f;
  f.suspend();
  CHECK(f.control.sent == "quiesce ");
  CHECK(f.mover.orders.empty());
  f.report(ipc::Quiet{});
  REQUIRE(f.mover.orders.size() == 1);
  CHECK(f.mover.orders[0].process_id == 4711);
  CHECK_FALSE(f.mover.orders[0].resume);
  CHECK(f.state() == SuspensionState::suspending);
  CHECK(f.suspensions.host_bytes({}) == 5u << 20);
  f.moved(ipc::MoveResult::done);
  CHECK(f.said == "suspended, 5 MiB; ");
  CHECK(f.state() == SuspensionState::suspended);
  CHECK(f.registry.find(f.session)->suspended_bytes == 5u << 20);
  CHECK(f.memory.released == 1);
  f.report(ipc::ReturnWanted{});
  CHECK(f.memory.taken == 1);
  REQUIRE(f.mover.orders.size() == 2);
  CHECK(f.mover.orders[1].resume);
  CHECK(f.control.sent == "quiesce ");
  f.moved(ipc::MoveResult::done);
  CHECK(f.control.sent == "quiesce go_on ");
  CHECK(f.state() == SuspensionState::none);
  CHECK(f.registry.find(f.session)->suspended_bytes == 0);
  CHECK(f.suspensions.host_bytes({}) == 0);
  CHECK(f.events == "suspended resumed ");
}

TEST_CASE("what prevents a suspension is told, and the session runs on") {
  SuspensionFixture f;
  f.memory.why = "it shares memory";
  f.suspend();
  f.memory.why.clear();
  f.mover.why = "no driver";
  f.suspend();
  f.mover.why.clear();
  f.available = 1 << 20;
  f.suspend();
  f.available = 0;
  CHECK(f.control.sent.empty());
  f.suspend();
  f.report(ipc::Quiet{"its program is making calls"});
  f.suspend();
  f.report(ipc::Quiet{});
  f.moved(ipc::MoveResult::refused, "managed memory");
  CHECK(
      f.said ==
      "no: it shares memory; no: no driver; no: the server's own memory is too small: 5 MiB are needed, and 1 MiB are "
      "free; no: its program is making calls; no: managed memory; ");
  CHECK(f.control.sent == "quiesce quiesce go_on ");
  CHECK(f.state() == SuspensionState::none);
  CHECK(f.memory.released == 0);
  CHECK(f.events.empty());
}

TEST_CASE("sessions that are suspended together do not take more than the host's memory") {
  SuspensionFixture f;
  const SessionId other = f.begin();
  f.available = 8 << 20;
  f.suspend();
  f.suspensions.suspend(other, f.hear());
  CHECK(f.said.empty());  // nothing is on its way yet
  f.report(ipc::Quiet{});
  ipc::Message quiet = ipc::Quiet{};
  CHECK(f.suspensions.on_message(*f.registry.find(other), quiet));
  CHECK(f.said == "no: the server's own memory is too small: 10 MiB are needed, and 8 MiB are free; ");
  CHECK(f.control.sent == "quiesce quiesce go_on ");
  f.moved(ipc::MoveResult::done);
  CHECK(f.state() == SuspensionState::suspended);
  CHECK(f.registry.find(other)->suspension == SuspensionState::none);
  CHECK(f.mover.orders.size() == 1);
}

TEST_CASE("suspended sessions together do not have more than the configured memory") {
  SuspensionFixture f;
  const SessionId other = f.begin();
  f.suspensions.set_memory_max((10 << 20) - 1);
  f.rest();
  f.suspensions.suspend(other, f.hear());
  CHECK(f.said ==
        "suspended, 5 MiB; no: suspend_memory is too small: 5 MiB are needed, and suspended sessions have 5 MiB of 10 "
        "MiB; ");
  f.suspensions.set_memory_max(10 << 20);
  f.suspensions.suspend(other, f.hear());
  CHECK(f.control.sent == "quiesce quiesce ");
  // The memory of a session that has returned counts no more.
  f.resume();
  f.moved(ipc::MoveResult::done);
  f.suspensions.set_memory_max(5 << 20);
  ipc::Message quiet = ipc::Quiet{};
  CHECK(f.suspensions.on_message(*f.registry.find(other), quiet));
  CHECK(f.mover.orders.size() == 3);
}

TEST_CASE("suspended sessions of a tenant together do not have more than the tenant's part of the configured memory") {
  SuspensionFixture f;
  const SessionId other = f.begin();
  f.tenant_max = (10 << 20) - 1;
  CHECK(f.suspensions.host_room({}) == (10 << 20) - 1);
  f.rest();
  CHECK(f.suspensions.host_room({}) == (5 << 20) - 1);
  f.suspensions.suspend(other, f.hear());
  CHECK(f.said ==
        "suspended, 5 MiB; no: the tenant's suspend_memory is too small: 5 MiB are needed, and its suspended sessions "
        "have 5 MiB of 10 MiB; ");
  f.tenant_max = 0;
  CHECK(f.suspensions.host_room({}) == UINT64_MAX);
  f.suspensions.suspend(other, f.hear());
  CHECK(f.control.sent == "quiesce quiesce ");
}

TEST_CASE("without a configured bound users suspend less than administrators") {
  SuspensionFixture f;
  const SuspensionRequester user{.name = "its user", .user = true};
  f.users_max = 4 << 20;
  f.suspensions.suspend(f.session, user, f.hear());
  CHECK(f.said ==
        "no: the server has no suspend_memory, and without it users suspend at most 4 MiB: 5 MiB are needed, and "
        "suspended sessions have 0 MiB; ");
  f.suspensions.set_memory_max(8 << 20);
  f.suspensions.suspend(f.session, user, f.hear());
  CHECK(f.control.sent == "quiesce ");
  SuspensionFixture other;
  other.users_max = 4 << 20;
  other.rest();
  CHECK(other.said == "suspended, 5 MiB; ");
}

TEST_CASE("a session that an administrator holds moves out first, and returns when it is held no more") {
  SuspensionFixture f;
  std::string held;
  f.suspensions.set_why_held([&](const SessionRecord&) { return held; });
  f.suspend();
  f.report(ipc::Quiet{});
  held = "GPU 0 is drained";
  f.report(ipc::ReturnWanted{});  // while it moves
  f.moved(ipc::MoveResult::done);
  CHECK(f.said == "suspended, 5 MiB; ");
  CHECK(f.state() == SuspensionState::resuming);
  CHECK(f.mover.orders.size() == 1);
  CHECK(f.memory.taken == 0);
  f.resume();
  CHECK(f.said == "suspended, 5 MiB; waits: GPU 0 is drained; ");
  f.await([&] { return !f.control.warned.empty(); });
  CHECK(f.control.warned == "resuming: 5 MiB, GPU 0 is drained; ");
  held.clear();
  f.await([&] { return f.mover.orders.size() == 2; });
  CHECK(f.mover.orders[1].resume);
  f.moved(ipc::MoveResult::done);
  CHECK(f.state() == SuspensionState::none);
}

TEST_CASE("a worker that does not answer is let go on, and may rest later without harm") {
  SuspensionFixture f;
  f.suspend();
  f.await([&] { return !f.said.empty(); });
  CHECK(f.said == "no: a call of its program has not returned within 2 s; ");
  CHECK(f.control.sent == "quiesce go_on ");
  f.report(ipc::Quiet{});
  CHECK(f.control.sent == "quiesce go_on go_on ");
  CHECK(f.mover.orders.empty());
}

TEST_CASE("a call during the move brings the session back without a time in which others get its memory") {
  SuspensionFixture f;
  f.suspend();
  f.report(ipc::Quiet{});
  f.report(ipc::ReturnWanted{});
  f.moved(ipc::MoveResult::done);
  REQUIRE(f.mover.orders.size() == 2);
  CHECK(f.mover.orders[1].resume);
  CHECK(f.memory.released == 0);
  CHECK(f.said == "no: its program has made a call meanwhile; ");
  f.moved(ipc::MoveResult::done);
  CHECK(f.control.sent == "quiesce go_on ");
}

TEST_CASE("a session returns when there is room, in the ledger and on the device") {
  SuspensionFixture f;
  f.rest();
  f.memory.room = false;
  f.resume();
  CHECK(f.state() == SuspensionState::resuming);
  f.resume();
  f.memory.room = true;
  f.await([&] { return f.mover.orders.size() == 2; });
  f.moved(ipc::MoveResult::no_room, "the device is full");
  CHECK(f.memory.released == 2);
  CHECK(f.control.stopped.empty());
  f.await([&] { return f.mover.orders.size() == 3; });
  f.resume();
  f.moved(ipc::MoveResult::done);
  CHECK(f.said ==
        "suspended, 5 MiB; waits until the device has room for it; waits until the device has room for it; resumed; ");
  CHECK(f.events == "suspended resumed ");
}

TEST_CASE("the orders of a suspender that has ended are given to the next one, one at a time") {
  SuspensionFixture f;
  const SessionId first = f.session, second = f.begin();
  f.suspend();
  f.report(ipc::Quiet{});
  f.session = second;
  f.suspend();
  f.report(ipc::Quiet{});
  CHECK(f.mover.orders.size() == 1);
  const uint64_t lost = f.mover.orders[0].order;
  f.mover.why = "it is starting again";
  f.suspender.gone();
  f.mover.why.clear();
  f.suspender.ready();
  REQUIRE(f.mover.orders.size() == 2);
  f.suspender.moved({lost, ipc::MoveResult::done, {}});  // of the one that has ended
  CHECK(f.registry.find(first)->suspension == SuspensionState::suspending);
  f.moved(ipc::MoveResult::done);
  CHECK(f.registry.find(first)->suspension == SuspensionState::suspended);
  REQUIRE(f.mover.orders.size() == 3);
  f.moved(ipc::MoveResult::done);
  CHECK(f.registry.find(second)->suspension == SuspensionState::suspended);
}

TEST_CASE("a session whose memory is lost ends with the reason, and one that ends is answered for") {
  SuspensionFixture f;
  f.rest();
  f.resume();
  f.moved(ipc::MoveResult::lost, "the driver has lost it");
  CHECK(f.control.stopped == "its device memory is lost: the driver has lost it");
  CHECK(f.said == "suspended, 5 MiB; no: its device memory is lost: the driver has lost it; ");
  CHECK(f.control.sent == "quiesce ");
  f.suspensions.ended(*f.registry.find(f.session));
  SuspensionFixture other;
  other.suspend();
  other.suspensions.ended(*other.registry.find(other.session));
  other.registry.ended(other.session, 0, "");
  CHECK(other.said == "no: it has ended; ");
  other.suspend();
  CHECK(other.said == "no: it has ended; no: there is no session 1; ");
}

TEST_CASE("released memory goes to sessions that return first, or last, as the suspension was meant") {
  for (const bool returns : {false, true}) {
    SuspensionFixture f;
    f.rest();
    f.memory.room = false;
    f.report(ipc::ReturnWanted{});
    f.memory.order.clear();
    const SessionId victim = f.begin();
    f.suspensions.suspend(victim, {"a test", returns}, f.hear());
    ipc::Message quiet = ipc::Quiet{};
    CHECK(f.suspensions.on_message(*f.registry.find(victim), quiet));
    f.moved(ipc::MoveResult::done);
    CHECK(f.memory.order == (returns ? "take offer take " : "offer take "));
  }
}

TEST_CASE("the duration of a return is that from the room for its memory to the end of the move") {
  SuspensionFixture f;
  using std::chrono::seconds;
  f.rest();
  CHECK_FALSE(f.suspensions.last_return(f.session));
  f.memory.room = false;
  f.resume();
  f.now += seconds(60);  // nobody gives room
  f.memory.room = true;
  f.await([&] { return f.mover.orders.size() == 2; });
  f.now += seconds(3);
  f.moved(ipc::MoveResult::done);
  REQUIRE(f.suspensions.last_return(f.session));
  CHECK(f.suspensions.last_return(f.session)->at == seconds(63));
  CHECK(f.suspensions.last_return(f.session)->took == seconds(3));
}

TEST_CASE("the next broker knows a session's last return") {
  SuspensionFixture f;
  using std::chrono::seconds;
  f.now = seconds(100);
  f.rest();
  f.resume();
  f.now += seconds(3);
  const int noted = f.control.noted;
  f.moved(ipc::MoveResult::done);
  CHECK(f.control.noted > noted);
  KeptSession kept;
  f.suspensions.note(*f.registry.find(f.session), kept);
  SuspensionFixture next;
  next.now = seconds(110);
  KeptEntry entry;
  REQUIRE(next.suspensions.adopt(*next.registry.find(next.session), kept, entry));
  REQUIRE(next.suspensions.last_return(next.session));
  CHECK(next.suspensions.last_return(next.session)->at == seconds(103));
  CHECK(next.suspensions.last_return(next.session)->took == seconds(3));
}

TEST_CASE(
    "a client is told once that its call waits for the session's return, and an administrator's resume is silent") {
  SuspensionFixture f;
  f.rest();
  f.memory.room = false;
  f.resume();
  f.report(ipc::ReturnWanted{});
  f.await([&] { return !f.control.warned.empty(); });
  CHECK(f.control.warned == "resuming: 5 MiB, others have the GPU; ");
  f.memory.room = true;
  f.await([&] { return f.mover.orders.size() == 2; });
  f.moved(ipc::MoveResult::done);
  CHECK(f.control.warned == "resuming: 5 MiB, others have the GPU; ");
}

TEST_CASE("the next broker finds each session where the earlier one has left it") {
  for (size_t phase = 0; phase < kSuspensionPhases; ++phase) {
    SuspensionFixture f;
    INFO(name_of(SuspensionPhase(phase)));
    KeptSession kept;
    kept.suspension = uint8_t(phase);
    KeptEntry entry;
    const bool adopted = f.suspensions.adopt(*f.registry.find(f.session), kept, entry).has_value();
    CHECK(adopted == (SuspensionPhase(phase) != SuspensionPhase::lost));
    if (!adopted) continue;
    f.suspensions.all_adopted();
    f.report(ipc::Quiet{});  // as a worker that rests says again
    switch (SuspensionPhase(phase)) {
      case SuspensionPhase::running:
      case SuspensionPhase::quiescing: CHECK(f.control.sent == "go_on "); break;
      case SuspensionPhase::suspended:
        CHECK(f.mover.orders.empty());
        CHECK(f.state() == SuspensionState::suspended);
        break;
      case SuspensionPhase::moving_out:
      case SuspensionPhase::recalled:
        REQUIRE(f.mover.orders.size() == 1);
        CHECK_FALSE(f.mover.orders[0].resume);
        break;
      case SuspensionPhase::awaiting_memory:
      case SuspensionPhase::moving_in:
        REQUIRE(f.mover.orders.size() == 1);
        CHECK(f.mover.orders[0].resume);
        f.moved(ipc::MoveResult::done);
        CHECK(f.control.sent == "go_on ");
        break;
      case SuspensionPhase::lost: break;
    }
  }
}
