// Words that streams write and wait for. The calls are posted, so what CUDA says of their arguments at once is found
// out here.
#include <algorithm>

#include "client/forward.hpp"
#include "client/hand.hpp"
#include "client_stub/driver/context/context.hpp"
#include "client_stub/driver/copy/copy_rules.hpp"

namespace gpuwire::client::hand {
namespace {

constexpr unsigned kWaitFlags = CU_STREAM_WAIT_VALUE_GEQ | CU_STREAM_WAIT_VALUE_EQ | CU_STREAM_WAIT_VALUE_AND |
                                CU_STREAM_WAIT_VALUE_NOR | CU_STREAM_WAIT_VALUE_FLUSH;
constexpr unsigned kWriteFlags = CU_STREAM_WRITE_VALUE_NO_MEMORY_BARRIER;

// `forward_call` posts the operation on a word of so many bytes.
template <class Forward>
CUresult operate(CUstream stream, bool per_thread, CUdeviceptr address, size_t bytes, unsigned flags,
                 unsigned known_flags, Forward&& forward_call) {
  Caller caller = enter(Needs::context);
  if (caller.error) return caller.error;
  CUresult error = CUDA_SUCCESS;
  resolve_stream(caller, stream, per_thread, error);
  if (error) return error;
  if (address % bytes != 0 || (flags & ~known_flags) != 0) return CUDA_ERROR_INVALID_VALUE;
  bool unknown = false;
  Place word = classify(address, bytes);
  if ((error = check_on_device(word, unknown))) return error;
  CUresult result = forward_call(caller);
  return leave(caller, !result && unknown ? await_verdict(caller) : result);
}

// Whether the driver takes it for certain. What it makes of others is its own word.
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

}  // namespace

CUresult cuStreamBatchMemOp_v2(CUstream stream, unsigned int count, CUstreamBatchMemOpParams* operations,
                               unsigned int flags, bool per_thread) {
  Caller caller = enter(Needs::context);
  if (caller.error) return caller.error;
  const bool plain =
      flags == 0 && count > 0 && operations &&
      std::all_of(operations, operations + count, [](const auto& operation) { return is_plain(operation); });
  CUresult result = forward::cuStreamBatchMemOp_v2(caller, stream, count, operations, flags, per_thread);
  return leave(caller, !result && !plain ? await_verdict(caller) : result);
}

CUresult cuStreamWaitValue32_v2(CUstream stream, CUdeviceptr addr, cuuint32_t value, unsigned int flags,
                                bool per_thread) {
  return operate(stream, per_thread, addr, sizeof value, flags, kWaitFlags, [&](const Caller& caller) {
    return forward::cuStreamWaitValue32_v2(caller, stream, addr, value, flags, per_thread);
  });
}

CUresult cuStreamWaitValue64_v2(CUstream stream, CUdeviceptr addr, cuuint64_t value, unsigned int flags,
                                bool per_thread) {
  return operate(stream, per_thread, addr, sizeof value, flags, kWaitFlags, [&](const Caller& caller) {
    return forward::cuStreamWaitValue64_v2(caller, stream, addr, value, flags, per_thread);
  });
}

CUresult cuStreamWriteValue32_v2(CUstream stream, CUdeviceptr addr, cuuint32_t value, unsigned int flags,
                                 bool per_thread) {
  return operate(stream, per_thread, addr, sizeof value, flags, kWriteFlags, [&](const Caller& caller) {
    return forward::cuStreamWriteValue32_v2(caller, stream, addr, value, flags, per_thread);
  });
}

CUresult cuStreamWriteValue64_v2(CUstream stream, CUdeviceptr addr, cuuint64_t value, unsigned int flags,
                                 bool per_thread) {
  return operate(stream, per_thread, addr, sizeof value, flags, kWriteFlags, [&](const Caller& caller) {
    return forward::cuStreamWriteValue64_v2(caller, stream, addr, value, flags, per_thread);
  });
}

// The operations as they were before CUDA 11.7, which drivers offer only to those who ask their kernel module for them;
// the attribute says whether. Elsewhere nothing of a call is looked at (as measured on driver 580).
namespace {

CUresult first_version() noexcept {
  Caller caller = enter(Needs::context);
  if (caller.error) return caller.error;
  int offered = 0;
  CUresult error =
      hand::cuDeviceGetAttribute(&offered, CU_DEVICE_ATTRIBUTE_CAN_USE_STREAM_MEM_OPS_V1, caller.state->device);
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

}  // namespace gpuwire::client::hand
