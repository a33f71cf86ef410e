// Waiting for the device: briefly on the executor, so that short work costs no thread switch, and patiently elsewhere.
#pragma once

#include <cuda.h>

#include <chrono>
#include <thread>

#include "server/driver_table.hpp"
#include "server/replay/replay.hpp"

namespace gpuwire::server {

// How long the executor polls before it hands the wait over. Longer than a short kernel and its copy, shorter than what a client that has
// sent more would notice.
inline constexpr std::chrono::microseconds kExecutorPoll{50};
// A waiter spins that long before it starts to sleep between two looks.
inline constexpr std::chrono::microseconds kWaiterSpin{200};
inline constexpr std::chrono::microseconds kWaiterSleepMin{20};
inline constexpr std::chrono::microseconds kWaiterSleepMax{200};

// Executor only. CUDA_ERROR_NOT_READY: not done by then, or the client has sent more to do.
inline CUresult poll_briefly(Replay& replay, CUevent event) {
  auto query = replay.driver().cuEventQuery;
  if (!query) return CUDA_ERROR_NOT_SUPPORTED;
  auto until = std::chrono::steady_clock::now() + kExecutorPoll;
  for (;;) {
    CUresult result = query(event);
    if (result != CUDA_ERROR_NOT_READY || replay.input_waiting() || std::chrono::steady_clock::now() >= until) return result;
  }
}

// Any thread but the executor. Unlike cuEventSynchronize it does not keep a core busy through a long kernel.
inline CUresult wait_for_event(const DriverTable& driver, CUevent event) {
  auto spin_until = std::chrono::steady_clock::now() + kWaiterSpin;
  auto sleep = kWaiterSleepMin;
  for (;;) {
    CUresult result = driver.cuEventQuery(event);
    if (result != CUDA_ERROR_NOT_READY) return result;
    if (std::chrono::steady_clock::now() < spin_until) continue;
    std::this_thread::sleep_for(sleep);
    if (sleep < kWaiterSleepMax) sleep += kWaiterSleepMin;
  }
}

// What a wait that ended well still owes: device-side printf is written out by a synchronising call, not by a query (CUDA programming
// guide, "Formatted Output").
inline CUresult settle(Replay& replay, CUevent event, CUresult polled) {
  if (polled == CUDA_SUCCESS && replay.driver().cuEventSynchronize) polled = replay.driver().cuEventSynchronize(event);
  replay.drain_output();
  return polled;
}

}  // namespace gpuwire::server
