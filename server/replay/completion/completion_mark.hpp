// A point in a stream that is waited for.
#pragma once

#include <cuda.h>

#include "protocol/threads/polling.hpp"
#include "server/driver_table.hpp"
#include "server/replay/completion/completion_words.hpp"
#include "server/replay/completion/event_pool.hpp"

namespace gpuwire::server {

// One in this many polls of a mark queries the driver, so that a failure is noticed after some ten microseconds of
// polling.
inline constexpr unsigned kPollsPerQuery = 16;
// The number of reads of the word in one poll: the caller's work between two polls (reading the clock, polling the
// connection) takes longer than the reads.
inline constexpr int kReadsPerPoll = 8;

// An event, for which any thread may wait, and a word for the one polling thread.
struct CompletionMark {
  PooledEvent event;
  CompletionWord word;
  unsigned looks = 0;
  // The word was seen written; the driver may still regard the stream as busy (passed_marks.hpp).
  bool seen_early = false;

  // Returns CUDA_SUCCESS if the stream has passed the mark, CUDA_ERROR_NOT_READY if not. If the word is not written,
  // the first poll queries the driver.
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

// Returns a mark after all present work of the stream, in the context of `events`, which is current. If the mark has no
// event, `result` is the driver's error.
inline CompletionMark mark_stream(const DriverTable& driver, EventPool& events, CUstream stream, CUresult& result) {
  CompletionMark mark;
  mark.event = events.take();
  if (!mark.event) {
    result = CUDA_ERROR_OUT_OF_MEMORY;
    return mark;
  }
  // The event is recorded after the word, so once it has completed the driver knows that the stream has passed the
  // word.
  mark.word = events.words().take();
  mark.word.mark(stream);
  result = driver.cuEventRecord ? driver.cuEventRecord(mark.event.get(), stream) : CUDA_ERROR_NOT_SUPPORTED;
  if (result != CUDA_SUCCESS) mark.event.reset();
  return mark;
}

}  // namespace gpuwire::server
