// The two parts of a move, with a worker and a suspender of the test.
#include "server/broker/suspension/eviction_mover.hpp"

#include <optional>
#include <string>
#include <vector>

#include <doctest/doctest.h>
#include <sys/eventfd.h>

#include "test/server/broker/suspension/suspension_parts.hpp"

using namespace gpuwire::server;
using gpuwire::scheduler::SessionId;
using ipc::MoveResult;

namespace {

constexpr SessionId kSession{17};
constexpr uint64_t kOrder = 5;

// Notes the steps in their order: "blocks out", "rest in" and so on.
struct Fixture {
  struct Suspender final : Mover {
    explicit Suspender(std::vector<std::string>& steps) : steps(steps) {}
    std::string why_no_moves() const override { return {}; }
    bool send(SessionId, ipc::Move order) override {
      CHECK(order.order == kOrder);
      CHECK(order.process_id == 4711);
      CHECK(order.process);
      steps.push_back(order.resume ? "rest in" : "rest out");
      return takes;
    }
    std::vector<std::string>& steps;
    bool takes = true;
  };
  struct Worker final : SessionControl {
    explicit Worker(std::vector<std::string>& steps) : steps(steps) {}
    bool send(SessionId session, ipc::Message message) override {
      CHECK(session == kSession);
      steps.push_back(std::get<ipc::MoveBlocks>(message).back ? "blocks in" : "blocks out");
      return takes;
    }
    void warn(SessionId, const std::string&) override {}
    bool stop(SessionId, const StopOrder&) override { return true; }
    OwnedDescriptor worker_process(SessionId) override { return OwnedDescriptor(::eventfd(0, EFD_CLOEXEC)); }
    void reconsider_waiting() override {}
    std::vector<std::string>& steps;
    bool takes = true;
  };

  boost::asio::io_context io;
  std::vector<std::string> steps;
  Suspender suspender{steps};
  Worker worker{steps};
  TenantDirectory tenants{{{.name = "anna", .suspend_eviction = true}, {.name = "bert"}}};
  EvictionMover mover{{.io = io, .control = worker, .tenants = tenants, .suspender = suspender}};
  std::optional<ipc::Moved> result;
  bool gone = false;
  SuspenderProcess::Events events = mover.between(
      {.ready = [] {}, .moved = [this](const ipc::Moved& moved) { result = moved; }, .gone = [this] { gone = true; }});
  SessionRecord session;

  Fixture() { session.number = kSession; }
  void order(bool resume) {
    CHECK(mover.send(kSession, {kOrder, 4711, resume, OwnedDescriptor(::eventfd(0, EFD_CLOEXEC))}));
    io.restart();
    io.poll();
  }
  void blocks(bool back, MoveResult outcome, const std::string& why = {}) {
    ipc::Message message = ipc::BlocksMoved{back, outcome, why};
    CHECK(mover.on_message(session, message));
  }
  void rest(MoveResult outcome, const std::string& why = {}) { events.moved({kOrder, outcome, why}); }
  void check(MoveResult outcome, const std::string& why, const std::vector<std::string>& expected) const {
    REQUIRE(result);
    CHECK(result->order == kOrder);
    CHECK(result->result == outcome);
    CHECK(result->why == why);
    CHECK(steps == expected);
  }
};

}  // namespace

TEST_CASE("the blocks leave before the rest, and return after it") {
  Fixture f;
  f.order(false);
  CHECK_FALSE(f.result);
  f.blocks(false, MoveResult::done);
  f.rest(MoveResult::done);
  f.check(MoveResult::done, "", {"blocks out", "rest out"});
  f.result.reset();
  f.order(true);
  f.rest(MoveResult::done);
  CHECK_FALSE(f.result);
  f.blocks(true, MoveResult::done);
  f.check(MoveResult::done, "", {"blocks out", "rest out", "rest in", "blocks in"});
}

TEST_CASE("blocks that cannot leave change nothing, and the rest stays") {
  Fixture f;
  f.order(false);
  f.blocks(false, MoveResult::refused, "no memory");
  f.check(MoveResult::refused, "no memory", {"blocks out"});
}

TEST_CASE("a rest that cannot leave has the blocks brought back, and the reason is its own") {
  Fixture f;
  f.order(false);
  f.blocks(false, MoveResult::done);
  f.rest(MoveResult::refused, "the driver cannot move a session with managed memory");
  CHECK_FALSE(f.result);
  f.blocks(true, MoveResult::done);
  f.check(MoveResult::refused, "the driver cannot move a session with managed memory",
          {"blocks out", "rest out", "blocks in"});
}

TEST_CASE("blocks that cannot come back behind a refused rest end the session") {
  for (const MoveResult outcome : {MoveResult::no_room, MoveResult::lost}) {
    Fixture f;
    f.order(false);
    f.blocks(false, MoveResult::done);
    f.rest(MoveResult::refused, "the driver cannot move a session with managed memory");
    f.blocks(true, outcome, "the device has too little free memory for the session");
    f.check(MoveResult::lost, "the device has too little free memory for the session",
            {"blocks out", "rest out", "blocks in"});
  }
}

TEST_CASE("without room for the blocks the rest leaves again, and the move had no room") {
  Fixture f;
  f.order(true);
  f.rest(MoveResult::done);
  f.blocks(true, MoveResult::no_room, "the device has too little free memory for the session");
  CHECK_FALSE(f.result);
  f.rest(MoveResult::done);
  f.check(MoveResult::no_room, "the device has too little free memory for the session",
          {"rest in", "blocks in", "rest out"});
}

TEST_CASE("without room for the rest the blocks stay with the host") {
  Fixture f;
  f.order(true);
  f.rest(MoveResult::no_room, "the device has too little free memory for the session");
  f.check(MoveResult::no_room, "the device has too little free memory for the session", {"rest in"});
}

TEST_CASE("a rest that cannot leave again loses the session") {
  Fixture f;
  f.order(true);
  f.rest(MoveResult::done);
  f.blocks(true, MoveResult::no_room, "the device has too little free memory for the session");
  f.rest(MoveResult::refused, "work on the GPU");
  f.check(MoveResult::lost, "work on the GPU", {"rest in", "blocks in", "rest out"});
}

TEST_CASE("a worker that takes no orders keeps its memory, or is lost when half of it has moved") {
  Fixture f;
  f.worker.takes = false;
  f.order(false);
  f.check(MoveResult::refused, "its process takes no orders", {"blocks out"});
  f.result.reset();
  f.order(true);
  f.rest(MoveResult::done);
  f.check(MoveResult::lost, "its process takes no orders", {"blocks out", "rest in", "blocks in"});
}

TEST_CASE("the end of a worker ends the step that it has not answered") {
  Fixture f;
  f.order(false);
  f.mover.ended(f.session);
  f.check(MoveResult::gone, "", {"blocks out"});
  f.result.reset();
  // The suspender answers for a process that has ended.
  f.order(true);
  f.mover.ended(f.session);
  CHECK_FALSE(f.result);
  f.rest(MoveResult::gone);
  f.check(MoveResult::gone, "", {"blocks out", "rest in"});
}

TEST_CASE("an order is forgotten with the suspender, and begins anew when it is given again") {
  Fixture f;
  f.order(false);
  f.blocks(false, MoveResult::done);
  f.events.gone();
  CHECK(f.gone);
  f.rest(MoveResult::done);  // of an order that nobody waits for
  f.blocks(true, MoveResult::done);
  CHECK_FALSE(f.result);
  f.order(false);
  f.blocks(false, MoveResult::done);
  f.rest(MoveResult::done);
  f.check(MoveResult::done, "", {"blocks out", "rest out", "blocks out", "rest out"});
}

TEST_CASE("an answer to an earlier order, and one of another session, are no answers") {
  Fixture f;
  f.order(false);
  f.blocks(true, MoveResult::done);
  SessionRecord other;
  other.number = SessionId{18};
  ipc::Message message = ipc::BlocksMoved{false, MoveResult::done, {}};
  CHECK(f.mover.on_message(other, message));
  CHECK(f.steps == std::vector<std::string>{"blocks out"});
}

TEST_CASE("an order that the suspender does not take is to be given again") {
  Fixture f;
  f.suspender.takes = false;
  CHECK_FALSE(f.mover.send(kSession, {kOrder, 4711, true, OwnedDescriptor(::eventfd(0, EFD_CLOEXEC))}));
}

TEST_CASE("the tenant's setting decides whether a session's allocations are evictable") {
  Fixture f;
  for (const auto& [tenant, evicts] : {std::pair("anna", true), std::pair("bert", false)}) {
    f.session.tenant_id = f.tenants.find(tenant)->id;
    SessionSpec spec;
    ipc::SessionDescriptors descriptors;
    CHECK(f.mover.attach(f.session, spec, descriptors).has_value());
    CHECK(spec.evicts == evicts);
  }
}
