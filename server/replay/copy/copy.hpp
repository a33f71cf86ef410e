// Copies between the connection and the device, linear and pitched.
#pragma once

#include "protocol/wire/limits.hpp"
#include "server/replay/replay.hpp"

namespace gpuwire::server {

class StagingBlock;
struct Context;

// The largest piece of a linear copy to the device that is read from the connection before the device starts on it:
// small enough that network and device work at the same time, large enough that neither the driver calls nor the
// synchronisation of the lanes (protocol/link) at its end matter. Its staging is bounded and charged as all staging is
// (kStagingBytesMax).
inline constexpr size_t kUploadPieceBytes = 8u << 20;
// A copy that the client waits for ends in pieces of this size, so that the device has little work left when the last
// piece has arrived.
inline constexpr size_t kUploadLastPieceBytes = 2u << 20;
static_assert(kUploadPieceBytes % wire::kChunkBytes == 0 && kUploadLastPieceBytes % wire::kChunkBytes == 0);
// Returns the size of the next piece of `remaining` bytes. `waited_for`: the client waits for the copy, so the last
// pieces are small.
size_t upload_piece(uint64_t remaining, bool waited_for);
// The time for which the executor waits for staging that earlier copies still use, before it takes memory beyond the
// usual bound. The wait is bounded because a stream that waits for a callback of the client advances only after the
// executor reads on.
inline constexpr unsigned kStagingWaitMs = 2000;

void copy_to_device(Replay& replay, Call& call);
void copy_from_device(Replay& replay, Call& call);
void copy_chunks(Replay& replay, Call& call);
void find_chunk(Replay& replay, Call& call);
void copy_region_to_device(Replay& replay, Call& call);
void copy_region_from_device(Replay& replay, Call& call);
void copy_2d_to_device(Replay& replay, Call& call);
void copy_2d_from_device(Replay& replay, Call& call);

// Executor. Returns staging for `bytes`, and waits for earlier copies if necessary. Empty: CUDA_ERROR_OUT_OF_MEMORY.
StagingBlock take_staging(Replay& replay, Context& context, size_t bytes);
// Executor. Keeps the block until the stream has passed this point.
CUresult keep_upload(Replay& replay, const Call& call, Context& context, CUstream stream, StagingBlock block,
                     bool blocking);
// Executor. Releases the blocks that the device has read.
void reap_uploads(Replay& replay, Context& context);
// Executor. Answers a copy to the device: at once, or when the stream has passed this point.
void answer_upload(Replay& replay, Call& call, Context& context, CUstream stream, bool blocking, CUresult result);
// Executor. Calls `answer` when the stream has passed this point: at once if that is soon, otherwise on another thread.
// The call counts as answered.
void answer_arrived(Replay& replay, Call& call, Context& context, CUstream stream,
                    std::function<void(CUresult)> answer);
// Executor. Sends the bytes of the device-to-host copy into `block`, which is on the stream: now if the copy is soon
// done, otherwise later.
void answer_download(Replay& replay, Call& call, Context& context, CUstream stream, StagingBlock block, uint64_t bytes);
// Executor. Answers a copy from the device that put nothing on the stream. A posted copy also needs its notice, because
// the client waits for it.
void answer_failed_download(Replay& replay, Call& call, CUresult result);
// Refuses a copy on a capturing stream: when the graph ran, the copy would use staging that meanwhile serves another
// copy.
CUresult refuse_capture(Replay& replay, CUstream stream);

}  // namespace gpuwire::server
