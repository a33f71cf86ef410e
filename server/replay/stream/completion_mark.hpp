// A point in a stream that is waited for.
#pragma once

#include <cuda.h>

#include "protocol/threads/polling.hpp"
#include "server/driver_table.hpp"
#include "server/replay/stream/completion_words.hpp"
#include "server/replay/stream/event_pool.hpp"

namespace gpuwire::server {

// One of this many polls of a mark asks the driver: after some ten microseconds of polling a failure is noticed.
inline constexpr unsigned kPollsPerQuery = 16;
// One poll reads the word this often, because its caller's work between two polls (reading the clock, asking the
// connection for input) takes longer than the reads.
inline constexpr int kReadsPerPoll = 8;

// An event, for which any thread may wait, and beside it a word for a polling thread. One thread polls.
struct CompletionMark {
  PooledEvent event;
  CompletionWord word;
  unsigned looks = 0;
  bool seen_early = false;  // the word has changed, and the driver may not know yet (passed_marks.hpp)

  // Whether the stream has passed it: CUDA_ERROR_NOT_READY: not yet. The first look asks the driver.
  CUresult poll(const DriverTable& driver) {
    if (reached()) return CUDA_SUCCESS;
    if (word.marked() && looks++ % kPollsPerQuery != 0) {
      for (int i = 1; i < kReadsPerPoll; ++i) {
        relax();
        if (reached()) return CUDA_SUCCESS;
      }
      return CUDA_ERROR_NOT_READY;
    }
    return driver.cuEventQuery ? driver.cuEventQuery(event.get()) : CUDA_ERROR_NOT_SUPPORTED;
  }

 private:
  bool reached() { return seen_early = word.reached(); }
};

// A mark behind everything that is on the stream now, in `events`' context, which is current. Without an event: the
// driver refuses, and `result` says why.
inline CompletionMark mark_stream(const DriverTable& driver, EventPool& events, CUstream stream, CUresult& result) {
  CompletionMark mark;
  mark.event = events.take();
  if (!mark.event) {
    result = CUDA_ERROR_OUT_OF_MEMORY;
    return mark;
  }
  // The event is done only after the word is written: by it the driver catches up.
  mark.word = events.words().take();
  mark.word.mark(stream);
  result = driver.cuEventRecord ? driver.cuEventRecord(mark.event.get(), stream) : CUDA_ERROR_NOT_SUPPORTED;
  if (result != CUDA_SUCCESS) mark.event.reset();
  return mark;
}

}  // namespace gpuwire::server
