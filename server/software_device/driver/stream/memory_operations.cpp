#include "server/software_device/driver/stream/memory_operations.hpp"

#include <algorithm>
#include <atomic>
#include <chrono>
#include <optional>
#include <thread>

#include "server/software_device/driver/call/api.hpp"
#include "server/software_device/driver/context/context_object.hpp"
#include "server/software_device/driver/stream/capture.hpp"

namespace gpuwire::software_device {
namespace {

// The interval between two polls of a word.
constexpr std::chrono::microseconds kPollMin{1};
constexpr std::chrono::microseconds kPollMax{100};

bool known_wait(unsigned flags) {
  return (flags & ~static_cast<unsigned>(CU_STREAM_WAIT_VALUE_FLUSH)) <= CU_STREAM_WAIT_VALUE_NOR;
}

bool reachable(CUdeviceptr address, size_t bytes) {
  return address % bytes == 0 && driver().memory.covers(address, bytes);
}

bool valid(const CUstreamBatchMemOpParams& operation) {
  switch (operation.operation) {
    case CU_STREAM_MEM_OP_WAIT_VALUE_32:
      return known_wait(operation.waitValue.flags) && reachable(operation.waitValue.address, sizeof(uint32_t));
    case CU_STREAM_MEM_OP_WAIT_VALUE_64:
      return known_wait(operation.waitValue.flags) && reachable(operation.waitValue.address, sizeof(uint64_t));
    case CU_STREAM_MEM_OP_WRITE_VALUE_32:
      return operation.writeValue.flags == 0 && reachable(operation.writeValue.address, sizeof(uint32_t));
    case CU_STREAM_MEM_OP_WRITE_VALUE_64:
      return operation.writeValue.flags == 0 && reachable(operation.writeValue.address, sizeof(uint64_t));
    case CU_STREAM_MEM_OP_FLUSH_REMOTE_WRITES: return operation.flushRemoteWrites.flags == 0;
    case CU_STREAM_MEM_OP_BARRIER: return operation.memoryBarrier.flags <= CU_STREAM_MEMORY_BARRIER_TYPE_GPU;
  }
  return false;
}

std::optional<CUdeviceptr> word_of(const CUstreamBatchMemOpParams& operation) {
  switch (operation.operation) {
    case CU_STREAM_MEM_OP_WAIT_VALUE_32:
    case CU_STREAM_MEM_OP_WAIT_VALUE_64: return operation.waitValue.address;
    case CU_STREAM_MEM_OP_WRITE_VALUE_32:
    case CU_STREAM_MEM_OP_WRITE_VALUE_64: return operation.writeValue.address;
    case CU_STREAM_MEM_OP_FLUSH_REMOTE_WRITES:
    case CU_STREAM_MEM_OP_BARRIER: return std::nullopt;
  }
  return std::nullopt;
}

template <typename Word>
bool holds(Word seen, Word wanted, unsigned flags) {
  switch (flags & ~static_cast<unsigned>(CU_STREAM_WAIT_VALUE_FLUSH)) {
    case CU_STREAM_WAIT_VALUE_GEQ: return static_cast<std::make_signed_t<Word>>(seen - wanted) >= 0;
    case CU_STREAM_WAIT_VALUE_EQ: return seen == wanted;
    case CU_STREAM_WAIT_VALUE_AND: return (seen & wanted) != 0;
    default: return static_cast<Word>(~(seen | wanted)) != 0;
  }
}

// Acquire and release: work before the write of a word is visible after the wait for it, whichever thread wrote the
// word.
template <typename Word>
void wait(const Context& context, CUdeviceptr address, Word wanted, unsigned flags) {
  const std::atomic_ref<Word> word(*reinterpret_cast<Word*>(address));
  for (auto pause = kPollMin; !holds(word.load(std::memory_order_acquire), wanted, flags);
       pause = std::min(pause * 2, kPollMax)) {
    if (context.cancelled() || context.fault() != CUDA_SUCCESS) {
      return;
    }
    std::this_thread::sleep_for(pause);
  }
}

template <typename Word>
void write(CUdeviceptr address, Word value) {
  std::atomic_ref<Word>(*reinterpret_cast<Word*>(address)).store(value, std::memory_order_release);
}

void carry_out(const Context& context, const CUstreamBatchMemOpParams& operation) {
  const auto& waited = operation.waitValue;
  const auto& written = operation.writeValue;
  switch (operation.operation) {
    case CU_STREAM_MEM_OP_WAIT_VALUE_32: return wait<uint32_t>(context, waited.address, waited.value, waited.flags);
    case CU_STREAM_MEM_OP_WAIT_VALUE_64: return wait<uint64_t>(context, waited.address, waited.value64, waited.flags);
    case CU_STREAM_MEM_OP_WRITE_VALUE_32: return write<uint32_t>(written.address, written.value);
    case CU_STREAM_MEM_OP_WRITE_VALUE_64: return write<uint64_t>(written.address, written.value64);
    case CU_STREAM_MEM_OP_FLUSH_REMOTE_WRITES:
    case CU_STREAM_MEM_OP_BARRIER: return;  // every step of a stream sees all earlier steps
  }
}

CUresult enqueue_operations(CUstream handle, const CUstreamBatchMemOpParams* operations, unsigned count,
                            unsigned flags) {
  return with_stream(handle, [&](Context& context, Stream& stream) -> CUresult {
    auto work = check_memory_operations(operations, count, flags);
    if (work && !is_capturing(stream) && !have_words(*work)) {
      return CUDA_ERROR_INVALID_VALUE;
    }
    return work ? enqueue(context, stream, *std::move(work)) : work.error();
  });
}

template <typename Value>
CUresult wait_value(CUstream stream, CUstreamBatchMemOpType operation, CUdeviceptr address, Value value,
                    unsigned flags) {
  CUstreamBatchMemOpParams parameters{};
  parameters.waitValue.operation = operation;
  parameters.waitValue.address = address;
  parameters.waitValue.value64 = value;
  parameters.waitValue.flags = flags;
  return enqueue_operations(stream, &parameters, 1, 0);
}

template <typename Value>
CUresult write_value(CUstream stream, CUstreamBatchMemOpType operation, CUdeviceptr address, Value value,
                     unsigned flags) {
  CUstreamBatchMemOpParams parameters{};
  parameters.writeValue.operation = operation;
  parameters.writeValue.address = address;
  parameters.writeValue.value64 = value;
  parameters.writeValue.flags = flags;
  return enqueue_operations(stream, &parameters, 1, 0);
}

}  // namespace

tl::expected<MemoryOperationsWork, CUresult> check_memory_operations(const CUstreamBatchMemOpParams* operations,
                                                                     unsigned count, unsigned flags) {
  if (operations == nullptr || count == 0 || count > kMemoryOperationsMax || flags != 0 ||
      !std::all_of(operations, operations + count, valid)) {
    return tl::unexpected(CUDA_ERROR_INVALID_VALUE);
  }
  return MemoryOperationsWork{{operations, operations + count}};
}

bool have_words(const MemoryOperationsWork& work) {
  return std::all_of(work.operations.begin(), work.operations.end(), [](const CUstreamBatchMemOpParams& operation) {
    bool holds = true;
    if (const auto address = word_of(operation)) {
      driver().memory.inspect(
          *address, [&](const MemoryRange& range) { holds = !range.in_pool() && range.kind != MemoryKind::managed; });
    }
    return holds;
  });
}

CUresult carry_out_memory_operations(const Context& context, const MemoryOperationsWork& work) {
  for (const CUstreamBatchMemOpParams& operation : work.operations) {
    carry_out(context, operation);
  }
  return CUDA_SUCCESS;
}

}  // namespace gpuwire::software_device

using namespace gpuwire::software_device;

namespace {

// `function`: the calling exported function.
CUresult first_version(const char* function = __builtin_FUNCTION()) {
  return with_context([](Context&) { return CUDA_ERROR_NOT_SUPPORTED; }, function);
}

}  // namespace

CUresult cuStreamWaitValue32_v2(CUstream stream, CUdeviceptr address, cuuint32_t value, unsigned int flags) {
  return wait_value(stream, CU_STREAM_MEM_OP_WAIT_VALUE_32, address, value, flags);
}
CUresult cuStreamWaitValue64_v2(CUstream stream, CUdeviceptr address, cuuint64_t value, unsigned int flags) {
  return wait_value(stream, CU_STREAM_MEM_OP_WAIT_VALUE_64, address, value, flags);
}
CUresult cuStreamWriteValue32_v2(CUstream stream, CUdeviceptr address, cuuint32_t value, unsigned int flags) {
  return write_value(stream, CU_STREAM_MEM_OP_WRITE_VALUE_32, address, value, flags);
}
CUresult cuStreamWriteValue64_v2(CUstream stream, CUdeviceptr address, cuuint64_t value, unsigned int flags) {
  return write_value(stream, CU_STREAM_MEM_OP_WRITE_VALUE_64, address, value, flags);
}
CUresult cuStreamBatchMemOp_v2(CUstream stream, unsigned int count, CUstreamBatchMemOpParams* operations,
                               unsigned int flags) {
  return enqueue_operations(stream, operations, count, flags);
}

// Neither this device nor, without an option of its kernel module, NVIDIA's driver supports the first version of the
// operations (CU_DEVICE_ATTRIBUTE_CAN_USE_STREAM_MEM_OPS_V1). The arguments are then not checked.
CUresult cuStreamWaitValue32(CUstream, CUdeviceptr, cuuint32_t, unsigned int) { return first_version(); }
CUresult cuStreamWaitValue64(CUstream, CUdeviceptr, cuuint64_t, unsigned int) { return first_version(); }
CUresult cuStreamWriteValue32(CUstream, CUdeviceptr, cuuint32_t, unsigned int) { return first_version(); }
CUresult cuStreamWriteValue64(CUstream, CUdeviceptr, cuuint64_t, unsigned int) { return first_version(); }
CUresult cuStreamBatchMemOp(CUstream, unsigned int, CUstreamBatchMemOpParams*, unsigned int) { return first_version(); }
