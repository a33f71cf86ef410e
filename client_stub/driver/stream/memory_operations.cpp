// Words that streams write and wait for. The calls are posted, so the client checks the arguments that CUDA checks at
// once.
#include <algorithm>
#include <span>

#include "client/forward.hpp"
#include "client/custom.hpp"
#include "client_stub/driver/context/context.hpp"
#include "client_stub/driver/copy/copy_rules.hpp"
#include "client_stub/driver/graph/graph_copies.hpp"
#include "client_stub/driver/session/server_session.hpp"
#include "client_stub/driver/copy/memory_in_flight.hpp"
#include "client_stub/driver/graph/graph_records.hpp"
#include "client_stub/driver/host_memory/pinned_pointers.hpp"
#include "protocol/wire/limits.hpp"

namespace gpuwire::client::custom {
namespace {

constexpr unsigned kWaitFlags = CU_STREAM_WAIT_VALUE_GEQ | CU_STREAM_WAIT_VALUE_EQ | CU_STREAM_WAIT_VALUE_AND |
                                CU_STREAM_WAIT_VALUE_NOR | CU_STREAM_WAIT_VALUE_FLUSH;
constexpr unsigned kWriteFlags = CU_STREAM_WRITE_VALUE_NO_MEMORY_BARRIER;

// The work behind the wait, in the stream or with each launch of the graph that it is captured into, may find that the
// program has done other things before it wrote the word.
void note_wait(const Caller& caller, uint64_t wire_stream, uint64_t sequence) {
  if (uint64_t capture = capture_of(caller, wire_stream)) {
    caller.server->graph_records.note_awaits(capture, Awaits::program);
  } else {
    caller.server->in_flight.note_standing(caller, wire_stream, sequence, Awaits::program);
  }
}

// `forward_call` posts the operation on a word of this many bytes.
template <class Forward>
CUresult operate(CUstream stream, bool per_thread, CUdeviceptr address, size_t bytes, unsigned flags, bool waits,
                 Forward&& forward_call) {
  Caller caller = enter(Needs::context);
  if (caller.error) return caller.error;
  CUresult error = CUDA_SUCCESS;
  const uint64_t wire_stream = resolve_stream(caller, stream, per_thread, error);
  if (error) return error;
  const unsigned known_flags = waits ? kWaitFlags : kWriteFlags;
  if (address % bytes != 0 || (flags & ~known_flags) != 0) return CUDA_ERROR_INVALID_VALUE;
  bool unknown = false;
  Place word = classify(address, bytes);
  if ((error = check_on_device(word, unknown))) return error;
  uint64_t sequence = 0;
  CUresult result = forward_call(caller, &sequence);
  if (!result && waits) note_wait(caller, wire_stream, sequence);
  return leave(caller, !result && unknown ? await_verdict(caller) : result);
}

// Whether the driver accepts it for certain. It decides itself about others.
bool is_plain(const CUstreamBatchMemOpParams& operation) noexcept {
  const auto reaches = [](CUdeviceptr address, size_t bytes) {
    bool unknown = false;
    Place word = classify(address, bytes);
    return address % bytes == 0 && check_on_device(word, unknown) == CUDA_SUCCESS && !unknown;
  };
  switch (operation.operation) {
    case CU_STREAM_MEM_OP_WAIT_VALUE_32:
    case CU_STREAM_MEM_OP_WAIT_VALUE_64:
      return (operation.waitValue.flags & ~kWaitFlags) == 0 &&
             reaches(operation.waitValue.address, operation.operation == CU_STREAM_MEM_OP_WAIT_VALUE_32 ? 4 : 8);
    case CU_STREAM_MEM_OP_WRITE_VALUE_32:
    case CU_STREAM_MEM_OP_WRITE_VALUE_64:
      return (operation.writeValue.flags & ~kWriteFlags) == 0 &&
             reaches(operation.writeValue.address, operation.operation == CU_STREAM_MEM_OP_WRITE_VALUE_32 ? 4 : 8);
    default: return false;
  }
}

// The words that kernels behind the operations read may be addresses of pinned memory.
void note_written(const Caller& caller, std::span<const CUstreamBatchMemOpParams> operations) noexcept {
  PinnedPointers& pinned = caller.server->pinned_pointers;
  for (const CUstreamBatchMemOpParams& operation : operations) {
    const auto& write = operation.writeValue;
    if (operation.operation == CU_STREAM_MEM_OP_WRITE_VALUE_64) pinned.scan_argument(write.value64);
    if (operation.operation == CU_STREAM_MEM_OP_WRITE_VALUE_32) pinned.scan_half(write.address, write.value);
  }
}

bool waits(const CUstreamBatchMemOpParams& operation) noexcept {
  return operation.operation == CU_STREAM_MEM_OP_WAIT_VALUE_32 || operation.operation == CU_STREAM_MEM_OP_WAIT_VALUE_64;
}

}  // namespace

CUresult cuStreamBatchMemOp_v2(CUstream stream, unsigned int count, CUstreamBatchMemOpParams* operations,
                               unsigned int flags, bool per_thread) {
  Caller caller = enter(Needs::context);
  if (caller.error) return caller.error;
  const bool plain =
      flags == 0 && count > 0 && operations &&
      std::all_of(operations, operations + count, [](const auto& operation) { return is_plain(operation); });
  if (operations && count <= wire::kListItemsMax) note_written(caller, {operations, count});
  uint64_t sequence = 0;
  CUresult result = forward::cuStreamBatchMemOp_v2(caller, stream, count, operations, flags, per_thread, &sequence);
  if (!result && std::any_of(operations, operations + count, waits)) {
    CUresult known = CUDA_SUCCESS;
    note_wait(caller, resolve_stream(caller, stream, per_thread, known), sequence);
  }
  return leave(caller, !result && !plain ? await_verdict(caller) : result);
}

CUresult cuStreamWaitValue32_v2(CUstream stream, CUdeviceptr addr, cuuint32_t value, unsigned int flags,
                                bool per_thread) {
  return operate(stream, per_thread, addr, sizeof value, flags, true, [&](const Caller& caller, uint64_t* sequence) {
    return forward::cuStreamWaitValue32_v2(caller, stream, addr, value, flags, per_thread, sequence);
  });
}

CUresult cuStreamWaitValue64_v2(CUstream stream, CUdeviceptr addr, cuuint64_t value, unsigned int flags,
                                bool per_thread) {
  return operate(stream, per_thread, addr, sizeof value, flags, true, [&](const Caller& caller, uint64_t* sequence) {
    return forward::cuStreamWaitValue64_v2(caller, stream, addr, value, flags, per_thread, sequence);
  });
}

CUresult cuStreamWriteValue32_v2(CUstream stream, CUdeviceptr addr, cuuint32_t value, unsigned int flags,
                                 bool per_thread) {
  return operate(stream, per_thread, addr, sizeof value, flags, false, [&](const Caller& caller, uint64_t* sequence) {
    caller.server->pinned_pointers.scan_half(addr, value);
    return forward::cuStreamWriteValue32_v2(caller, stream, addr, value, flags, per_thread, sequence);
  });
}

CUresult cuStreamWriteValue64_v2(CUstream stream, CUdeviceptr addr, cuuint64_t value, unsigned int flags,
                                 bool per_thread) {
  return operate(stream, per_thread, addr, sizeof value, flags, false, [&](const Caller& caller, uint64_t* sequence) {
    caller.server->pinned_pointers.scan_argument(value);
    return forward::cuStreamWriteValue64_v2(caller, stream, addr, value, flags, per_thread, sequence);
  });
}

// The operations as they were before CUDA 11.7, which drivers offer only if their kernel module is configured for them;
// the attribute shows it. Otherwise no argument of a call is checked (as measured on driver 580).
namespace {

CUresult first_version() noexcept {
  Caller caller = enter(Needs::context);
  if (caller.error) return caller.error;
  int offered = 0;
  CUresult error =
      custom::cuDeviceGetAttribute(&offered, CU_DEVICE_ATTRIBUTE_CAN_USE_STREAM_MEM_OPS_V1, caller.state->device);
  if (error) return error;
  return offered ? CUDA_SUCCESS : CUDA_ERROR_NOT_SUPPORTED;
}

}  // namespace

CUresult cuStreamWaitValue32(CUstream stream, CUdeviceptr addr, cuuint32_t value, unsigned int flags, bool per_thread) {
  CUresult refused = first_version();
  return refused ? refused : cuStreamWaitValue32_v2(stream, addr, value, flags, per_thread);
}

CUresult cuStreamWaitValue64(CUstream stream, CUdeviceptr addr, cuuint64_t value, unsigned int flags, bool per_thread) {
  CUresult refused = first_version();
  return refused ? refused : cuStreamWaitValue64_v2(stream, addr, value, flags, per_thread);
}

CUresult cuStreamWriteValue32(CUstream stream, CUdeviceptr addr, cuuint32_t value, unsigned int flags,
                              bool per_thread) {
  CUresult refused = first_version();
  return refused ? refused : cuStreamWriteValue32_v2(stream, addr, value, flags, per_thread);
}

CUresult cuStreamWriteValue64(CUstream stream, CUdeviceptr addr, cuuint64_t value, unsigned int flags,
                              bool per_thread) {
  CUresult refused = first_version();
  return refused ? refused : cuStreamWriteValue64_v2(stream, addr, value, flags, per_thread);
}

CUresult cuStreamBatchMemOp(CUstream stream, unsigned int count, CUstreamBatchMemOpParams* operations,
                            unsigned int flags, bool per_thread) {
  CUresult refused = first_version();
  return refused ? refused : cuStreamBatchMemOp_v2(stream, count, operations, flags, per_thread);
}

}  // namespace gpuwire::client::custom
