// The calls of memory operations are posted, so the client checks the arguments that CUDA checks at once.
#include "client_stub/driver/calls/stream/memory_operations.hpp"

#include "client/forward.hpp"
#include "client/custom.hpp"
#include "client_stub/driver/state/context/context.hpp"
#include "client_stub/driver/state/copy/copy_rules.hpp"
#include "client_stub/driver/state/graph/graph_copies.hpp"
#include "client_stub/driver/state/session/server_session.hpp"
#include "client_stub/driver/state/copy/memory_in_flight.hpp"
#include "client_stub/driver/state/graph/graph_records.hpp"
#include "client_stub/driver/state/host_memory/pinned_pointers.hpp"
#include "client_stub/driver/state/memory/place.hpp"
#include "protocol/wire/limits.hpp"

namespace gpuwire::client {
namespace {

constexpr unsigned kWaitFlags = CU_STREAM_WAIT_VALUE_GEQ | CU_STREAM_WAIT_VALUE_EQ | CU_STREAM_WAIT_VALUE_AND |
                                CU_STREAM_WAIT_VALUE_NOR | CU_STREAM_WAIT_VALUE_FLUSH;
constexpr unsigned kWriteFlags = CU_STREAM_WRITE_VALUE_NO_MEMORY_BARRIER;

// Returns whether memory of this kind may hold the words of operations. Managed memory and memory of pools and graphs
// may not (as measured on driver 580).
bool holds_words(RangeKind kind) noexcept {
  return kind != RangeKind::pool && kind != RangeKind::graph && !is_managed(kind);
}

// The word of an operation. The constructor makes its memory known to the device.
struct Word {
  // The result of the call, if the word is invalid at any time.
  CUresult error = CUDA_SUCCESS;
  // Only the server's driver can check the word.
  bool unknown = false;
  // The memory may hold words of operations.
  bool holds = true;

  Word(CUdeviceptr address, size_t bytes) noexcept {
    if (address % bytes != 0) {
      error = CUDA_ERROR_INVALID_VALUE;
      return;
    }
    Place place = classify(address, bytes);
    error = check_on_device(place, unknown);
    holds = place.kind == PlaceKind::other || holds_words(place.entry.kind);
  }
  bool refused_when_run() const noexcept { return unknown || !holds; }
};

// Checks one operation. Its flags and its word are those of a wait or of a write.
MemoryOperations look_at_one(const CUstreamBatchMemOpParams& operation) noexcept {
  const auto judge = [](unsigned flags, unsigned known_flags, CUdeviceptr address, size_t bytes, bool waits) {
    const Word word(address, bytes);
    return MemoryOperations{.plain = (flags & ~known_flags) == 0 && !word.error && !word.unknown,
                            .refused_when_run = word.refused_when_run(),
                            .waits = waits};
  };
  const auto& wait = operation.waitValue;
  const auto& write = operation.writeValue;
  switch (operation.operation) {
    case CU_STREAM_MEM_OP_WAIT_VALUE_32: return judge(wait.flags, kWaitFlags, wait.address, 4, true);
    case CU_STREAM_MEM_OP_WAIT_VALUE_64: return judge(wait.flags, kWaitFlags, wait.address, 8, true);
    case CU_STREAM_MEM_OP_WRITE_VALUE_32: return judge(write.flags, kWriteFlags, write.address, 4, false);
    case CU_STREAM_MEM_OP_WRITE_VALUE_64: return judge(write.flags, kWriteFlags, write.address, 8, false);
    default: return {.plain = false};
  }
}

// Scans a written word for an address of pinned memory, because kernels behind the operation may read the word.
void note_written(const Caller& caller, const CUstreamBatchMemOpParams& operation) noexcept {
  PinnedPointers& pinned = caller.server->pinned_pointers;
  const auto& write = operation.writeValue;
  if (operation.operation == CU_STREAM_MEM_OP_WRITE_VALUE_64) pinned.scan_argument(write.value64);
  if (operation.operation == CU_STREAM_MEM_OP_WRITE_VALUE_32) pinned.scan_half(write.address, write.value);
}

}  // namespace

MemoryOperations look_at(const Caller& caller, std::span<const CUstreamBatchMemOpParams> operations) noexcept {
  MemoryOperations all{.plain = !operations.empty()};
  for (const CUstreamBatchMemOpParams& operation : operations) {
    const MemoryOperations one = look_at_one(operation);
    all.plain = all.plain && one.plain;
    all.refused_when_run = all.refused_when_run || one.refused_when_run;
    all.waits = all.waits || one.waits;
    note_written(caller, operation);
  }
  return all;
}

void note_in_graph(const Caller& caller, uint64_t owner, const MemoryOperations& operations) {
  GraphRecords& records = caller.server->graph_records;
  if (operations.refused_when_run) records.note_judged(owner);
  // With each launch the work behind the wait may depend on what the program does before it writes the word.
  if (operations.waits) records.note_awaits(owner, Awaits::program);
}

namespace hand {
namespace {

// Returns the result of operations whose frame was sent as `sequence` to the stream, or to the graph into which the
// stream is captured. The driver refuses such operations at once in a stream, and at the launch of a graph.
CUresult sent(const Caller& caller, uint64_t wire_stream, uint64_t sequence, const MemoryOperations& operations) {
  const uint64_t capture = capture_of(caller, wire_stream);
  if (capture) note_in_graph(caller, capture, operations);
  // The work behind the wait may depend on what the program does before it writes the word.
  if (!capture && operations.waits) {
    caller.server->in_flight.note_standing(caller, wire_stream, sequence, Awaits::program);
  }
  return operations.plain && (capture || !operations.refused_when_run) ? CUDA_SUCCESS : await_verdict(caller);
}

// Checks an operation on a word of this many bytes. `forward_call` posts it.
template <class Forward>
CUresult operate(const Caller& caller, CUstream stream, bool per_thread, CUdeviceptr address, size_t bytes,
                 unsigned flags, bool waits, Forward&& forward_call) {
  CUresult error = CUDA_SUCCESS;
  const uint64_t wire_stream = resolve_stream(caller, stream, per_thread, error);
  if (error) return error;
  const unsigned known_flags = waits ? kWaitFlags : kWriteFlags;
  if ((flags & ~known_flags) != 0) return CUDA_ERROR_INVALID_VALUE;
  const Word word(address, bytes);
  if (word.error) return word.error;
  uint64_t sequence = 0;
  CUresult result = forward_call(&sequence);
  if (!result) {
    result = sent(caller, wire_stream, sequence,
                  {.plain = !word.unknown, .refused_when_run = word.refused_when_run(), .waits = waits});
  }
  return result;
}

}  // namespace

CUresult cuStreamBatchMemOp_v2(const Caller& caller, CUstream stream, unsigned int count,
                               CUstreamBatchMemOpParams* operations, unsigned int flags, bool per_thread) {
  const bool readable = operations && count <= wire::kListItemsMax;
  MemoryOperations all = look_at(caller, {operations, readable ? count : 0});
  all.plain = all.plain && flags == 0;
  uint64_t sequence = 0;
  CUresult result = forward::cuStreamBatchMemOp_v2(caller, stream, count, operations, flags, per_thread, &sequence);
  if (!result) {
    CUresult known = CUDA_SUCCESS;
    result = sent(caller, resolve_stream(caller, stream, per_thread, known), sequence, all);
  }
  return result;
}

CUresult cuStreamWaitValue32_v2(const Caller& caller, CUstream stream, CUdeviceptr addr, cuuint32_t value,
                                unsigned int flags, bool per_thread) {
  return operate(caller, stream, per_thread, addr, sizeof value, flags, true, [&](uint64_t* sequence) {
    return forward::cuStreamWaitValue32_v2(caller, stream, addr, value, flags, per_thread, sequence);
  });
}

CUresult cuStreamWaitValue64_v2(const Caller& caller, CUstream stream, CUdeviceptr addr, cuuint64_t value,
                                unsigned int flags, bool per_thread) {
  return operate(caller, stream, per_thread, addr, sizeof value, flags, true, [&](uint64_t* sequence) {
    return forward::cuStreamWaitValue64_v2(caller, stream, addr, value, flags, per_thread, sequence);
  });
}

CUresult cuStreamWriteValue32_v2(const Caller& caller, CUstream stream, CUdeviceptr addr, cuuint32_t value,
                                 unsigned int flags, bool per_thread) {
  return operate(caller, stream, per_thread, addr, sizeof value, flags, false, [&](uint64_t* sequence) {
    caller.server->pinned_pointers.scan_half(addr, value);
    return forward::cuStreamWriteValue32_v2(caller, stream, addr, value, flags, per_thread, sequence);
  });
}

CUresult cuStreamWriteValue64_v2(const Caller& caller, CUstream stream, CUdeviceptr addr, cuuint64_t value,
                                 unsigned int flags, bool per_thread) {
  return operate(caller, stream, per_thread, addr, sizeof value, flags, false, [&](uint64_t* sequence) {
    caller.server->pinned_pointers.scan_argument(value);
    return forward::cuStreamWriteValue64_v2(caller, stream, addr, value, flags, per_thread, sequence);
  });
}

// The forms of before CUDA 11.7. A driver offers them only if its kernel module is configured for them, which the
// attribute shows. Otherwise the calls check no argument (as measured on driver 580).
namespace {

CUresult first_version(const Caller& caller) noexcept {
  int offered = 0;
  CUresult error =
      custom::cuDeviceGetAttribute(&offered, CU_DEVICE_ATTRIBUTE_CAN_USE_STREAM_MEM_OPS_V1, caller.state->device);
  if (error) return error;
  return offered ? CUDA_SUCCESS : CUDA_ERROR_NOT_SUPPORTED;
}

}  // namespace

CUresult cuStreamWaitValue32(const Caller& caller, CUstream stream, CUdeviceptr addr, cuuint32_t value,
                             unsigned int flags, bool per_thread) {
  CUresult refused = first_version(caller);
  return refused ? refused : hand::cuStreamWaitValue32_v2(caller, stream, addr, value, flags, per_thread);
}

CUresult cuStreamWaitValue64(const Caller& caller, CUstream stream, CUdeviceptr addr, cuuint64_t value,
                             unsigned int flags, bool per_thread) {
  CUresult refused = first_version(caller);
  return refused ? refused : hand::cuStreamWaitValue64_v2(caller, stream, addr, value, flags, per_thread);
}

CUresult cuStreamWriteValue32(const Caller& caller, CUstream stream, CUdeviceptr addr, cuuint32_t value,
                              unsigned int flags, bool per_thread) {
  CUresult refused = first_version(caller);
  return refused ? refused : hand::cuStreamWriteValue32_v2(caller, stream, addr, value, flags, per_thread);
}

CUresult cuStreamWriteValue64(const Caller& caller, CUstream stream, CUdeviceptr addr, cuuint64_t value,
                              unsigned int flags, bool per_thread) {
  CUresult refused = first_version(caller);
  return refused ? refused : hand::cuStreamWriteValue64_v2(caller, stream, addr, value, flags, per_thread);
}

CUresult cuStreamBatchMemOp(const Caller& caller, CUstream stream, unsigned int count,
                            CUstreamBatchMemOpParams* operations, unsigned int flags, bool per_thread) {
  CUresult refused = first_version(caller);
  return refused ? refused : hand::cuStreamBatchMemOp_v2(caller, stream, count, operations, flags, per_thread);
}

}  // namespace hand
}  // namespace gpuwire::client
