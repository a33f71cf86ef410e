// The checks that all copies and fills make before they begin.
#pragma once

#include <cuda.h>

#include <cstddef>
#include <cstdint>

#include "client_stub/driver/state/call/caller.hpp"
#include "client_stub/driver/state/memory/place.hpp"

namespace gpuwire::client {

// The effect of a copy or a fill on its stream.
enum class Form : uint8_t {
  blocking,  // no stream argument
  ordered,   // ...Async
};

// The largest copy to the device that is searched for a table of pointers to pinned memory.
inline constexpr size_t kPointerTableBytesMax = 1u << 20;

// For work at unknown addresses: waits until the server's driver has checked all sent work, so that leave() reports its
// result.
CUresult await_verdict(const Caller& caller);

// May work of the stream stand until the program does something, so that waiting for it might never end?
bool stands_for_program(const Caller& caller, uint64_t stream) noexcept;

// Waits for all work of the caller's context, and notes that it is done. False: it may not be waited for, since a
// stream captures or this is a function of the program, or it failed.
bool synchronise_context(const Caller& caller) noexcept;

// When a copy reads its source in memory of the program. Natively that is when the stream gets there, if the memory is
// page-locked and the form is not a blocking one.
enum class SourceRead : uint8_t {
  now,      // nothing under way can change it
  settled,  // now, after waiting for the work that still writes to it
  late,     // when the stream reaches it: earlier work of the stream may change it, or waits for the program, which may
};
SourceRead when_to_read(const Caller& caller, const Place& source, uint64_t stream, Form form) noexcept;

// Waits for all work that still writes to the source: an earlier asynchronous copy, a launched graph, work that reaches
// the memory, or a function of the program that the stream will call.
CUresult settle_source(const Caller& caller, const Place& source, uint64_t stream);

// Makes a source ready to be read now. `copy_late` copies the source when the stream reaches it, if that is required.
// If the server cannot read the source then, the function waits for all work that it may wait for. A result other than
// success, or `done`, is the call's result.
template <class CopyLate>
CUresult ready_source(const Caller& caller, const Place& source, uint64_t stream, Form form, bool& done,
                      CopyLate&& copy_late) {
  done = false;
  const SourceRead read = when_to_read(caller, source, stream, form);
  if (read == SourceRead::now) return CUDA_SUCCESS;
  if (read == SourceRead::late) {
    const CUresult result = copy_late();
    done = result != CUDA_ERROR_NOT_SUPPORTED && result != CUDA_ERROR_OUT_OF_MEMORY;
    if (done || stands_for_program(caller, stream)) return done ? result : CUDA_SUCCESS;
  }
  return settle_source(caller, source, stream);
}

// If the copy's own stream is captured, the copy goes into the graph, unless the capture is invalid. A `blocking` form
// (in the thread's own default stream) would wait for the capture: CUDA_ERROR_STREAM_CAPTURE_UNSUPPORTED, and the
// capture becomes invalid. Captures of other streams do not affect a copy (as measured on driver 580), except by the
// NULL stream's own rule.
CUresult refuse_in_capture(const Caller& caller, uint64_t stream, bool blocking);

}  // namespace gpuwire::client
