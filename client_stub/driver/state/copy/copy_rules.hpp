// The checks of all copies and fills before they begin.
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

// The largest copy to the device that is scanned as a table of pointers to pinned memory.
inline constexpr size_t kPointerTableBytesMax = 1u << 20;

// For work at unknown addresses: waits until the server's driver has checked all sent work, so that leave() reports its
// result.
CUresult await_verdict(const Caller& caller);

// Returns whether work of the stream may wait for an action of the program, so that a wait for the work might never
// end.
bool stands_for_program(const Caller& caller, uint64_t stream) noexcept;

// Waits for all work of the caller's context, and records that it is done. Returns false if the wait fails or is
// forbidden: while a stream captures, or in a function of the program.
bool synchronise_context(const Caller& caller) noexcept;

// When a copy reads its source in memory of the program. Natively, a copy from page-locked memory reads when the stream
// reaches it, unless its form is a blocking one.
enum class SourceRead : uint8_t {
  now,      // no work in flight can change it
  settled,  // now, after waiting for the work that still writes to it
  late,     // when the stream reaches it: earlier work may change it, or waits for the program, which may change it
};
SourceRead when_to_read(const Caller& caller, const Place& source, uint64_t stream, Form form) noexcept;

// Waits for all work that still writes to the source: an earlier asynchronous copy, a launched graph, work that reaches
// the memory, or a function of the program that the stream will call.
CUresult settle_source(const Caller& caller, const Place& source, uint64_t stream);

// Waits for the work behind which a blocking copy natively reads its source, for a copy that the server makes by an
// asynchronous copy between addresses. An asynchronous copy of a few KiB from page-locked memory in an idle NULL stream
// natively reads the source in the call, without regard to other streams for which the NULL stream waits; a blocking
// one does not (as measured on driver 580: up to 16 KiB, not from 32 KiB on). No effect on other copies.
CUresult await_writers(const Caller& caller, uint64_t stream, size_t bytes, Form form);

// Waits for the work for which an operation that the stream gets now would wait: for a copy within host memory, which
// the client makes itself. A wait for the stream alone does not cover newer work of the NULL stream.
CUresult await_turn(const Caller& caller, uint64_t stream);

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
