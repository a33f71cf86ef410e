#include "server/suspender/process_move.hpp"

#include <cuda.h>
#include <doctest/doctest.h>

#include <string>
#include <vector>

#include "server/driver_table.hpp"

using namespace gpuwire::server;
using ipc::MoveResult;

namespace {

constexpr int kProcess = 4711;

// The driver's view of the one process, and the answer of each step; functions of a driver's table have no object.
struct Driver {
  CUprocessState state = CU_PROCESS_STATE_RUNNING;
  CUresult get_state = CUDA_SUCCESS, lock = CUDA_SUCCESS, checkpoint = CUDA_SUCCESS, restore = CUDA_SUCCESS,
           unlock = CUDA_SUCCESS;
  unsigned lock_ms = 0;
  std::vector<std::string> steps;
};
Driver* the_driver = nullptr;

CUresult step(const char* name, int process, CUresult answer, CUprocessState from, CUprocessState to) {
  CHECK(process == kProcess);
  the_driver->steps.emplace_back(name);
  if (answer != CUDA_SUCCESS) return answer;
  if (the_driver->state != from) return CUDA_ERROR_ILLEGAL_STATE;
  the_driver->state = to;
  return CUDA_SUCCESS;
}

CUresult CUDAAPI get_state(int process, CUprocessState* state) {
  CHECK(process == kProcess);
  *state = the_driver->state;
  return the_driver->get_state;
}
CUresult CUDAAPI lock(int process, CUcheckpointLockArgs* args) {
  the_driver->lock_ms = args->timeoutMs;
  return step("lock", process, the_driver->lock, CU_PROCESS_STATE_RUNNING, CU_PROCESS_STATE_LOCKED);
}
CUresult CUDAAPI checkpoint(int process, CUcheckpointCheckpointArgs*) {
  return step("checkpoint", process, the_driver->checkpoint, CU_PROCESS_STATE_LOCKED, CU_PROCESS_STATE_CHECKPOINTED);
}
CUresult CUDAAPI restore(int process, CUcheckpointRestoreArgs*) {
  return step("restore", process, the_driver->restore, CU_PROCESS_STATE_CHECKPOINTED, CU_PROCESS_STATE_LOCKED);
}
CUresult CUDAAPI unlock(int process, CUcheckpointUnlockArgs*) {
  return step("unlock", process, the_driver->unlock, CU_PROCESS_STATE_LOCKED, CU_PROCESS_STATE_RUNNING);
}

struct Fixture {
  Driver driver;
  DriverTable table;
  size_t lives_for = SIZE_MAX;  // this many steps

  Fixture() {
    the_driver = &driver;
    table.cuCheckpointProcessGetState = get_state;
    table.cuCheckpointProcessLock = lock;
    table.cuCheckpointProcessCheckpoint = checkpoint;
    table.cuCheckpointProcessRestore = restore;
    table.cuCheckpointProcessUnlock = unlock;
  }
  ~Fixture() { the_driver = nullptr; }
  ProcessMove move() {
    return {table, kProcess, [this] { return driver.steps.size() < lives_for; }};
  }
};

using Steps = std::vector<std::string>;

}  // namespace

TEST_CASE("a process's memory goes to the host and comes back") {
  Fixture fixture;
  CHECK(fixture.move().to_host() == MoveOutcome{});
  CHECK(fixture.driver.state == CU_PROCESS_STATE_CHECKPOINTED);
  CHECK(fixture.driver.lock_ms == kLockMs);
  CHECK(fixture.move().to_device() == MoveOutcome{});
  CHECK(fixture.driver.state == CU_PROCESS_STATE_RUNNING);
  CHECK(fixture.driver.steps == Steps{"lock", "checkpoint", "restore", "unlock"});
}

TEST_CASE("an order that was interrupted is finished by the next one, from every state") {
  for (CUprocessState state : {CU_PROCESS_STATE_RUNNING, CU_PROCESS_STATE_LOCKED, CU_PROCESS_STATE_CHECKPOINTED}) {
    Fixture out;
    out.driver.state = state;
    CHECK(out.move().to_host() == MoveOutcome{});
    CHECK(out.driver.state == CU_PROCESS_STATE_CHECKPOINTED);
    Fixture in;
    in.driver.state = state;
    CHECK(in.move().to_device() == MoveOutcome{});
    CHECK(in.driver.state == CU_PROCESS_STATE_RUNNING);
  }
}

TEST_CASE("a process that cannot be locked or moved runs on, and the reason is told") {
  Fixture busy;
  busy.driver.lock = CUDA_ERROR_NOT_READY;
  MoveOutcome outcome = busy.move().to_host();
  CHECK(outcome.result == MoveResult::refused);
  CHECK(outcome.why == "its work did not end within 5 s");
  CHECK(busy.driver.state == CU_PROCESS_STATE_RUNNING);

  Fixture managed;
  managed.driver.checkpoint = CUDA_ERROR_NOT_SUPPORTED;
  outcome = managed.move().to_host();
  CHECK(outcome.result == MoveResult::refused);
  CHECK(outcome.why == "the driver cannot move a session with managed memory");
  CHECK(managed.driver.state == CU_PROCESS_STATE_RUNNING);
  CHECK(managed.driver.steps == Steps{"lock", "checkpoint", "unlock"});
}

TEST_CASE("a process that cannot be unlocked again is lost") {
  Fixture fixture;
  fixture.driver.checkpoint = CUDA_ERROR_OUT_OF_MEMORY;
  fixture.driver.unlock = CUDA_ERROR_UNKNOWN;
  CHECK(fixture.move().to_host().result == MoveResult::lost);
}

TEST_CASE("too little memory of the device leaves the contents with the host, and the order may be given again") {
  Fixture fixture;
  CHECK(fixture.move().to_host() == MoveOutcome{});
  fixture.driver.restore = CUDA_ERROR_OUT_OF_MEMORY;
  CHECK(fixture.move().to_device().result == MoveResult::no_room);
  CHECK(fixture.driver.state == CU_PROCESS_STATE_CHECKPOINTED);
  fixture.driver.restore = CUDA_SUCCESS;
  CHECK(fixture.move().to_device() == MoveOutcome{});
}

TEST_CASE("contents that the driver has lost are no success") {
  Fixture fixture;
  CHECK(fixture.move().to_host() == MoveOutcome{});
  fixture.driver.restore = CUDA_ERROR_UNKNOWN;
  CHECK(fixture.move().to_device().result == MoveResult::lost);
  fixture.driver.state = CU_PROCESS_STATE_FAILED;
  CHECK(fixture.move().to_device().result == MoveResult::lost);
  CHECK(fixture.move().to_host().result == MoveResult::lost);
}

TEST_CASE("no step reaches a process that has ended, whose number may be another's") {
  for (size_t lives_for : {size_t{0}, size_t{1}}) {
    Fixture fixture;
    fixture.lives_for = lives_for;
    CHECK(fixture.move().to_host().result == MoveResult::gone);
    CHECK(fixture.driver.steps.size() == lives_for);
  }
  Fixture asleep;
  CHECK(asleep.move().to_host() == MoveOutcome{});
  asleep.lives_for = 3;
  CHECK(asleep.move().to_device().result == MoveResult::gone);
  CHECK(asleep.driver.steps == Steps{"lock", "checkpoint", "restore"});
}

TEST_CASE("a driver without checkpoints is named") {
  Fixture fixture;
  CHECK(why_no_moves(fixture.table).empty());
  fixture.table.cuCheckpointProcessRestore = nullptr;
  CHECK(!why_no_moves(fixture.table).empty());
}
