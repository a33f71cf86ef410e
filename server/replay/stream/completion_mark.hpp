// A point in a stream that is waited for.
#pragma once

#include <cuda.h>

#include "protocol/threads/looking.hpp"
#include "server/driver_table.hpp"
#include "server/replay/stream/completion_words.hpp"
#include "server/replay/stream/event_pool.hpp"

namespace gpuwire::server {

// Of so many looks at a mark one asks the driver: some ten microseconds of looking, after which a failure is noticed.
inline constexpr unsigned kLooksPerQuery = 16;
// A look at the word reads it so often, because what its caller does between two looks (reading the clock, asking the
// connection for input) takes longer than they do.
inline constexpr int kReadsPerLook = 8;

// An event, which anybody may wait for, and beside it a word for who looks again and again. One thread looks.
struct CompletionMark {
  PooledEvent event;
  CompletionWord word;
  unsigned looks = 0;
  bool seen_early = false;  // the word has told, and the driver may not know yet (passed_marks.hpp)

  // Whether the stream has passed it: CUDA_ERROR_NOT_READY: not yet. The first look asks the driver.
  CUresult look(const DriverTable& driver) {
    if (reached()) return CUDA_SUCCESS;
    if (word.marked() && looks++ % kLooksPerQuery != 0) {
      for (int i = 1; i < kReadsPerLook; ++i) {
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
