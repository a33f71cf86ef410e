#include "test/server/software_device/driver/fixture.hpp"

using namespace gpuwire::software_device::test;

namespace {

CUevent make_event(unsigned flags = CU_EVENT_DEFAULT) {
  CUevent out = nullptr;
  REQUIRE(cuEventCreate(&out, flags) == CUDA_SUCCESS);
  return out;
}

CUstream make_stream() {
  CUstream out = nullptr;
  REQUIRE(cuStreamCreate(&out, CU_STREAM_NON_BLOCKING) == CUDA_SUCCESS);
  return out;
}

}  // namespace

TEST_CASE("An event is done when the work before it is, and time passes between two") {
  const CurrentContext context;
  Barrier barrier;
  const CUstream stream = make_stream();
  const CUevent start = make_event(), end = make_event();
  CHECK(cuEventQuery(start) == CUDA_SUCCESS);
  CHECK(cuEventRecord(start, stream) == CUDA_SUCCESS);
  REQUIRE(cuLaunchHostFunc(stream, Barrier::wait, &barrier) == CUDA_SUCCESS);
  CHECK(cuEventRecord(end, stream) == CUDA_SUCCESS);
  CHECK(cuEventQuery(end) == CUDA_ERROR_NOT_READY);
  float milliseconds = -1;
  CHECK(cuEventElapsedTime(&milliseconds, start, end) == CUDA_ERROR_NOT_READY);
  barrier.gate.set_value();
  CHECK(cuEventSynchronize(end) == CUDA_SUCCESS);
  CHECK(cuEventQuery(end) == CUDA_SUCCESS);
  CHECK(cuEventElapsedTime(&milliseconds, start, end) == CUDA_SUCCESS);
  CHECK(milliseconds > 0);
}

TEST_CASE("Times are only between recorded events that were created with timing") {
  const CurrentContext context;
  const CUevent timed = make_event(), untimed = make_event(CU_EVENT_DISABLE_TIMING), unrecorded = make_event();
  CHECK(cuEventRecord(timed, nullptr) == CUDA_SUCCESS);
  CHECK(cuEventRecord(untimed, nullptr) == CUDA_SUCCESS);
  CHECK(cuCtxSynchronize() == CUDA_SUCCESS);
  float milliseconds = 0;
  CHECK(cuEventElapsedTime(&milliseconds, timed, untimed) == CUDA_ERROR_INVALID_HANDLE);
  CHECK(cuEventElapsedTime(&milliseconds, timed, unrecorded) == CUDA_ERROR_INVALID_HANDLE);
  CHECK(cuEventDestroy(timed) == CUDA_SUCCESS);
  CHECK(cuEventRecord(timed, nullptr) == CUDA_ERROR_INVALID_HANDLE);
  CUevent event = nullptr;
  CHECK(cuEventCreate(&event, CU_EVENT_INTERPROCESS | CU_EVENT_DISABLE_TIMING) == CUDA_ERROR_NOT_SUPPORTED);
  CHECK(cuEventCreate(&event, 64) == CUDA_ERROR_INVALID_VALUE);
}

TEST_CASE("A stream that waits for an event does not run ahead of the work before it") {
  const CurrentContext context;
  Barrier barrier;
  const CUstream first = make_stream(), second = make_stream();
  const CUevent event = make_event(CU_EVENT_DISABLE_TIMING);
  REQUIRE(cuLaunchHostFunc(first, Barrier::wait, &barrier) == CUDA_SUCCESS);
  REQUIRE(cuEventRecord(event, first) == CUDA_SUCCESS);
  REQUIRE(cuStreamWaitEvent(second, event, 0) == CUDA_SUCCESS);
  CHECK(cuStreamQuery(second) == CUDA_ERROR_NOT_READY);
  barrier.gate.set_value();
  CHECK(cuStreamSynchronize(second) == CUDA_SUCCESS);
  CHECK(cuStreamQuery(first) == CUDA_SUCCESS);
}

TEST_CASE("An event belongs to its context") {
  const CurrentContext context;
  const CUevent event = make_event();
  const CurrentContext other;
  CHECK(cuEventRecord(event, nullptr) == CUDA_ERROR_INVALID_HANDLE);
}
