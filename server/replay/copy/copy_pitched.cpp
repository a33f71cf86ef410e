// Two- and three-dimensional copies. The connection carries the rows packed; the device side has pitches, or is an
// array.
#include "protocol/wire/limits.hpp"
#include "server/driver_table.hpp"
#include "server/replay/context/context.hpp"
#include "server/replay/copy/copy.hpp"
#include "server/replay/call/reply.hpp"
#include "server/replay/session/replay_state.hpp"

namespace gpuwire::server {

namespace {

struct Pitched {
  Context* context = nullptr;
  CUstream stream = nullptr;
  uint64_t packed_bytes = 0;
  CUDA_MEMCPY3D
  copy{};  // decode() fills in the device side as both source and destination; each direction then sets its host side
};

// Fills `pitched`. A frame must be able to carry the size.
CUresult decode(Replay& replay, schema::Copy2D::Reader params, Pitched& pitched) {
  unsigned __int128 bytes = (unsigned __int128)params.getWidthBytes() * params.getHeight();
  if (bytes > wire::kBulkBytesMax) throw ProtocolFault{"copy_2d: more bytes than a frame may carry"};
  bytes *= params.getDepth();
  if (bytes > wire::kBulkBytesMax) throw ProtocolFault{"copy_2d: more bytes than a frame may carry"};
  pitched.packed_bytes = uint64_t(bytes);
  pitched.context = replay.state().contexts().current();
  if (!pitched.context) return CUDA_ERROR_INVALID_CONTEXT;
  if (!find_stream(replay, params.getStream(), pitched.stream)) return CUDA_ERROR_INVALID_HANDLE;
  pitched.context = replay.state().contexts().enter_stream(pitched.stream);
  CUDA_MEMCPY3D& copy = pitched.copy;
  copy.WidthInBytes = params.getWidthBytes();
  copy.Height = params.getHeight();
  copy.Depth = params.getDepth();
  copy.srcXInBytes = copy.dstXInBytes = params.getXBytes();
  copy.srcY = copy.dstY = params.getY();
  copy.srcZ = copy.dstZ = params.getZ();
  copy.srcLOD = copy.dstLOD = params.getLod();
  if (params.getArray() != 0) {
    void* array = nullptr;
    if (!replay.handles().find(wire::HandleKind::array, params.getArray(), array)) return CUDA_ERROR_INVALID_HANDLE;
    copy.srcMemoryType = copy.dstMemoryType = CU_MEMORYTYPE_ARRAY;
    copy.srcArray = copy.dstArray = static_cast<CUarray>(array);
  } else {
    copy.srcMemoryType = copy.dstMemoryType = CU_MEMORYTYPE_DEVICE;
    copy.srcDevice = copy.dstDevice = params.getDevice();
    copy.srcPitch = copy.dstPitch = params.getPitchBytes();
    copy.srcHeight = copy.dstHeight = params.getHeightRows();
  }
  return refuse_capture(replay, pitched.stream);
}

}  // namespace

void copy_2d_to_device(Replay& replay, Call& call) {
  auto params = call.message.getRoot<schema::Copy2D>();
  Pitched pitched;
  CUresult result = decode(replay, params, pitched);
  if (call.bulk.remaining() != pitched.packed_bytes)
    throw ProtocolFault{"copy_2d_to_device: the bulk is not of the copy's size"};
  if (result != CUDA_SUCCESS || pitched.packed_bytes == 0) return finish(replay, call, result);
  StagingBlock block = take_staging(replay, *pitched.context, pitched.packed_bytes);
  if (!block) return finish(replay, call, CUDA_ERROR_OUT_OF_MEMORY);
  if (!call.bulk.read({block.data(), size_t(pitched.packed_bytes)})) return;
  CUDA_MEMCPY3D& copy = pitched.copy;
  copy.srcMemoryType = CU_MEMORYTYPE_HOST;
  copy.srcHost = block.data();
  copy.srcPitch = copy.WidthInBytes;
  copy.srcHeight = copy.Height;
  copy.srcDevice = 0;
  copy.srcArray = nullptr;
  copy.srcXInBytes = copy.srcY = copy.srcZ = copy.srcLOD = 0;
  result = drive(replay.driver().cuMemcpy3DAsync_v2, static_cast<const CUDA_MEMCPY3D*>(&copy), pitched.stream);
  if (result == CUDA_SUCCESS)
    result = keep_upload(replay, call, *pitched.context, pitched.stream, std::move(block), params.getBlocking());
  answer_upload(replay, call, *pitched.context, pitched.stream, params.getBlocking(), result);
}

void copy_2d_from_device(Replay& replay, Call& call) {
  auto params = call.message.getRoot<schema::Copy2D>();
  Pitched pitched;
  CUresult result = decode(replay, params, pitched);
  if (result != CUDA_SUCCESS || pitched.packed_bytes == 0) return answer_failed_download(replay, call, result);
  StagingBlock block = take_staging(replay, *pitched.context, pitched.packed_bytes);
  if (!block) return answer_failed_download(replay, call, CUDA_ERROR_OUT_OF_MEMORY);
  CUDA_MEMCPY3D& copy = pitched.copy;
  copy.dstMemoryType = CU_MEMORYTYPE_HOST;
  copy.dstHost = block.data();
  copy.dstPitch = copy.WidthInBytes;
  copy.dstHeight = copy.Height;
  copy.dstDevice = 0;
  copy.dstArray = nullptr;
  copy.dstXInBytes = copy.dstY = copy.dstZ = copy.dstLOD = 0;
  result = drive(replay.driver().cuMemcpy3DAsync_v2, static_cast<const CUDA_MEMCPY3D*>(&copy), pitched.stream);
  if (result != CUDA_SUCCESS) return answer_failed_download(replay, call, result);
  answer_download(replay, call, *pitched.context, pitched.stream, std::move(block), pitched.packed_bytes);
}

}  // namespace gpuwire::server
