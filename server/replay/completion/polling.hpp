// Waiting for the device: the executor waits briefly, so that short work costs no thread switch; waiter threads wait as
// long as needed.
#pragma once

#include <cuda.h>

#include <algorithm>
#include <chrono>
#include <thread>

#include "protocol/threads/polling.hpp"
#include "server/driver_table.hpp"
#include "server/replay/replay.hpp"
#include "server/replay/completion/completion_mark.hpp"

namespace gpuwire::server {

// The executor polls for a copy and the short kernel before it for this long even on a machine with few cores.
inline constexpr std::chrono::microseconds kCopyPoll{50};
// A waiter spins for this long before it starts to sleep between polls. Each sleep is a fraction of the wait so far, so
// that the waiter is never late by more than this fraction.
inline constexpr std::chrono::microseconds kWaiterSpin{200};
inline constexpr std::chrono::microseconds kWaiterSleepMin{20};
inline constexpr std::chrono::microseconds kWaiterSleepMax{200};
inline constexpr int kWaiterSleepPart = 32;

// Calls `query` at least once, and repeats it for up to `spin`. Returns CUDA_ERROR_NOT_READY if the work was not done
// by then, or the client has sent more frames. Executor only.
template <class Query>
CUresult poll_for(Replay& replay, Query query, std::chrono::microseconds spin) {
  auto begun = std::chrono::steady_clock::now();
  // The work was polled, and was not done.
  bool looked = false;
  for (;;) {
    CUresult result = query();
    const bool done = result != CUDA_ERROR_NOT_READY;
    if (done && !looked) return result;
    looked = true;
    auto spent = std::chrono::steady_clock::now() - begun;
    if (done || spent >= spin || replay.input_waiting()) {
      replay.note_polled(spent);
      return result;
    }
    relax(spent);
  }
}

// Polls for Replay::poll_time(), or for `at_least` if that is longer. Executor only.
template <class Query>
CUresult poll_device(Replay& replay, Query query, std::chrono::microseconds at_least = {}) {
  return poll_for(replay, query, std::max(replay.poll_time(), at_least));
}

inline CUresult poll_copy(Replay& replay, CUevent event) {
  auto query = replay.driver().cuEventQuery;
  if (!query) return CUDA_ERROR_NOT_SUPPORTED;
  return poll_device(
      replay, [&] { return query(event); }, kCopyPoll);
}

inline CUresult poll_copy(Replay& replay, CompletionMark& mark) {
  return poll_device(
      replay, [&] { return mark.poll(replay.driver()); }, kCopyPoll);
}

// Waits for the event. Any thread but the executor. Unlike cuEventSynchronize, this does not keep a core busy during a
// long kernel.
inline CUresult wait_for_event(const DriverTable& driver, CUevent event) {
  auto begun = std::chrono::steady_clock::now();
  for (;;) {
    CUresult result = driver.cuEventQuery(event);
    if (result != CUDA_ERROR_NOT_READY) return result;
    auto spent = std::chrono::duration_cast<std::chrono::microseconds>(std::chrono::steady_clock::now() - begun);
    if (spent >= kWaiterSpin)
      std::this_thread::sleep_for(std::clamp(spent / kWaiterSleepPart, kWaiterSleepMin, kWaiterSleepMax));
  }
}

// Fulfils the duties that remain after a query has found the work done. `synchronise`: the driver call that waits for
// the same work.
template <class Synchronise>
CUresult synchronise_if_due(Replay& replay, CUresult polled, Synchronise synchronise) {
  return polled == CUDA_SUCCESS && replay.sync_duties().any() ? synchronise() : polled;
}

// Sends the device's output. Called before a wait is answered. After a failure the output includes the driver's text
// about it.
inline void drain_if_due(Replay& replay, CUresult waited) {
  if (waited != CUDA_SUCCESS || replay.sync_duties().any()) replay.drain_output();
}

// synchronise_if_due() for an event, then drain_if_due().
inline CUresult settle(Replay& replay, CUevent event, CUresult polled) {
  auto synchronise = replay.driver().cuEventSynchronize;
  if (synchronise) polled = synchronise_if_due(replay, polled, [&] { return synchronise(event); });
  drain_if_due(replay, polled);
  return polled;
}

}  // namespace gpuwire::server
