#include "server/replay/managed_memory/managed_memory.hpp"

#include <span>
#include <vector>

#include "protocol/wire/byte_changes.hpp"
#include "protocol/wire/limits.hpp"
#include "server/driver_table.hpp"
#include "server/replay/call/reply.hpp"
#include "server/replay/context/context.hpp"
#include "server/replay/copy/copy.hpp"
#include "server/replay/copy/upload_order.hpp"
#include "server/replay/session/replay_state.hpp"
#include "server/session_handlers.hpp"
#include "wire/session_frames.hpp"

namespace gpuwire::server {

CUresult find_managed(const DriverTable& driver, CUdeviceptr address, ManagedRange& range) {
  uint32_t managed = 0;
  CUdeviceptr begin = 0;
  size_t bytes = 0;
  CUresult result =
      drive(driver.cuPointerGetAttribute, static_cast<void*>(&managed), CU_POINTER_ATTRIBUTE_IS_MANAGED, address);
  if (result == CUDA_SUCCESS && !managed) result = CUDA_ERROR_INVALID_VALUE;
  if (result == CUDA_SUCCESS)
    result = drive(driver.cuPointerGetAttribute, static_cast<void*>(&begin), CU_POINTER_ATTRIBUTE_MAPPING_BASE_ADDR,
                   address);
  if (result == CUDA_SUCCESS)
    result =
        drive(driver.cuPointerGetAttribute, static_cast<void*>(&bytes), CU_POINTER_ATTRIBUTE_MAPPING_SIZE, address);
  range = {begin, bytes};
  return result;
}

namespace {

CUresult check_managed(Replay& replay, CUdeviceptr address, uint64_t bytes) {
  ManagedRange range;
  if (replay.state().contexts().on_executor()) replay.state().contexts().enter_any();
  if (CUresult error = find_managed(replay.driver(), address, range)) return error;
  bool inside =
      address >= range.begin && address - range.begin <= range.bytes && bytes <= range.bytes - (address - range.begin);
  return inside ? CUDA_SUCCESS : CUDA_ERROR_INVALID_VALUE;
}

// Returns the current context's stream for copies that run concurrently with all other work. Null: it cannot be made.
CUstream stream_beside(Replay& replay, Context& context) {
  if (!context.beside) {
    drive(replay.driver().cuStreamCreate, &context.beside, unsigned(CU_STREAM_NON_BLOCKING));
    UploadOrder* order = replay.state().upload_order();
    if (context.beside && order) order->leave_out(context.beside);
  }
  return context.beside;
}

struct Run {
  size_t offset = 0, bytes = 0;
};

// Returns the runs of changed bytes. Empty: there are too many runs for the copy engine.
std::vector<Run> runs_of(std::span<const uint8_t> mask, size_t bytes) {
  constexpr size_t kRunsMax = 16;
  if (mask.empty()) return {{0, bytes}};
  std::vector<Run> runs;
  for (size_t i = 0; i < bytes; ++i) {
    if (!(mask[i / 8] >> (i % 8) & 1)) continue;
    if (!runs.empty() && runs.back().offset + runs.back().bytes == i) {
      ++runs.back().bytes;
    } else if (runs.size() == kRunsMax) {
      return {};
    } else {
      runs.push_back({i, 1});
    }
  }
  return runs;
}

// Copies by the copy engine, which leaves the pages where they are; the processor would move each page to the host, and
// the device would move it back at its next use.
bool copied_by_engine(Replay& replay, CUdeviceptr address, StagingBlock& block, std::span<const Run> runs,
                      bool to_device) {
  Context* context = replay.state().contexts().current();
  CUstream stream = context ? stream_beside(replay, *context) : nullptr;
  if (!stream || runs.empty()) return false;
  for (const Run& run : runs) {
    void* host = block.data() + run.offset;
    CUresult result = to_device
                          ? drive(replay.driver().cuMemcpyHtoDAsync_v2, address + run.offset,
                                  static_cast<const void*>(host), run.bytes, stream)
                          : drive(replay.driver().cuMemcpyDtoHAsync_v2, host, address + run.offset, run.bytes, stream);
    if (result != CUDA_SUCCESS) return false;
  }
  return drive(replay.driver().cuStreamSynchronize, stream) == CUDA_SUCCESS;
}

// Returns staging for the copy engine. Empty: the processor has to copy, because on a thread other than the executor
// the contexts must not be used.
StagingBlock staging_of(Replay& replay, size_t bytes) {
  if (!replay.state().contexts().on_executor()) return {};
  Context* context = replay.state().contexts().current();
  return context && context->staging ? take_staging(replay, *context, bytes) : StagingBlock();
}

}  // namespace

void managed_write(Replay& replay, Call& call) {
  auto params = call.message.getRoot<schema::ManagedWrite>();
  uint64_t bytes = call.bulk.remaining();
  auto changed = params.getChanged();
  if (bytes == 0) throw ProtocolFault{"managed_write: no bulk"};
  if (changed.size() != 0 && changed.size() != wire::change_mask_bytes(bytes))
    throw ProtocolFault{"managed_write: a mask of another length than the bulk"};
  std::span<const uint8_t> mask(changed.begin(), changed.size());
  CUresult result = check_managed(replay, params.getAddress(), bytes);
  StagingBlock block = staging_of(replay, bytes);
  std::vector<std::byte> pageable(block ? 0 : bytes);
  std::span<std::byte> piece(block ? block.data() : pageable.data(), bytes);
  if (!call.bulk.read(piece)) return;
  if (result == CUDA_SUCCESS &&
      !(block && copied_by_engine(replay, params.getAddress(), block, runs_of(mask, bytes), true))) {
    wire::write_changed(reinterpret_cast<std::byte*>(params.getAddress()), piece, mask);
  }
  finish(replay, call, result);
}

void managed_read(Replay& replay, Call& call) {
  auto params = call.message.getRoot<schema::ManagedRead>();
  uint64_t bytes = params.getBytes();
  if (bytes == 0 || bytes > wire::reply_bulk_bytes_max(wire::SessionOrdinal::managed_read))
    throw ProtocolFault{"managed_read: a wrong number of bytes"};
  CUresult result = check_managed(replay, params.getAddress(), bytes);
  if (result != CUDA_SUCCESS) return finish(replay, call, result);
  StagingBlock block = staging_of(replay, bytes);
  const Run all{0, bytes};
  std::vector<std::byte> pageable;
  std::span<const std::byte> data(block.data(), bytes);
  if (!block || !copied_by_engine(replay, params.getAddress(), block, {&all, 1}, false)) {
    // The bytes are copied first, so that sending does not fault pages in under the outbox's lock.
    const auto* memory = reinterpret_cast<const std::byte*>(params.getAddress());
    pageable.assign(memory, memory + bytes);
    data = pageable;
  }
  call.answered = true;
  if (pageable.empty() && bytes > wire::kPostedBulkBytesMax) {
    return send_result(replay, call.header.sequence, CUDA_SUCCESS, data,
                       std::make_shared<StagingBlock>(std::move(block)));
  }
  send_result(replay, call.header.sequence, CUDA_SUCCESS, data);
}

}  // namespace gpuwire::server
