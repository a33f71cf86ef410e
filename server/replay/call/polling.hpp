// Waiting for the device: briefly on the executor, so that short work costs no thread switch, and patiently elsewhere.
#pragma once

#include <cuda.h>

#include <algorithm>
#include <chrono>
#include <thread>

#include "protocol/threads/polling.hpp"
#include "server/driver_table.hpp"
#include "server/replay/replay.hpp"
#include "server/replay/stream/completion_mark.hpp"

namespace gpuwire::server {

// A copy and the short kernel before it are polled for this long even where cores are few.
inline constexpr std::chrono::microseconds kCopyPoll{50};
// A waiter spins for this long before it starts to sleep between two polls: for a part of its wait so far, so that it
// is never late by more.
inline constexpr std::chrono::microseconds kWaiterSpin{200};
inline constexpr std::chrono::microseconds kWaiterSleepMin{20};
inline constexpr std::chrono::microseconds kWaiterSleepMax{200};
inline constexpr int kWaiterSleepPart = 32;

// Executor only: asks `query` once, and again for as long as `spin`. CUDA_ERROR_NOT_READY: not done by then, or the
// client has sent more to do.
template <class Query>
CUresult poll_for(Replay& replay, Query query, std::chrono::microseconds spin) {
  auto begun = std::chrono::steady_clock::now();
  bool looked = false;  // and it was not done
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

// As long as the replay polls, or `at_least`.
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

// Any thread but the executor. Unlike cuEventSynchronize it does not keep a core busy through a long kernel.
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

// The duties that a successful wait for a query may still have. `synchronise`: the driver's call that waits for the
// same.
template <class Synchronise>
CUresult synchronise_if_due(Replay& replay, CUresult polled, Synchronise synchronise) {
  return polled == CUDA_SUCCESS && replay.sync_duties().any() ? synchronise() : polled;
}

// Before a wait is answered: the device's output leaves first. A driver reports failures in words, too.
inline void drain_if_due(Replay& replay, CUresult waited) {
  if (waited != CUDA_SUCCESS || replay.sync_duties().any()) replay.drain_output();
}

// Both.
inline CUresult settle(Replay& replay, CUevent event, CUresult polled) {
  auto synchronise = replay.driver().cuEventSynchronize;
  if (synchronise) polled = synchronise_if_due(replay, polled, [&] { return synchronise(event); });
  drain_if_due(replay, polled);
  return polled;
}

}  // namespace gpuwire::server
