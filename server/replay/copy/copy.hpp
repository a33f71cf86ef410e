// Copies between the connection and the device, linear and pitched.
#pragma once

#include "server/replay/replay.hpp"

namespace gpuwire::server {

class StagingBlock;
struct Context;

// The largest piece of a linear copy to the device that is read from the connection before the device starts on it:
// small enough that network and device work at the same time, large enough that the calls do not count.
inline constexpr size_t kUploadPieceBytes = 2u << 20;
// How long the executor waits for staging that earlier copies still use, before it takes memory beyond the usual bound.
// A stream that waits for a callback of the client only moves when the executor reads on.
inline constexpr unsigned kStagingWaitMs = 2000;

void copy_to_device(Replay& replay, Call& call);
void copy_from_device(Replay& replay, Call& call);
void copy_2d_to_device(Replay& replay, Call& call);
void copy_2d_from_device(Replay& replay, Call& call);

// Executor. Staging for `bytes`, waiting for earlier copies if need be. Empty: CUDA_ERROR_OUT_OF_MEMORY.
StagingBlock take_staging(Replay& replay, Context& context, size_t bytes);
// Executor. Keeps the block until the stream has passed this point.
CUresult keep_upload(Replay& replay, const Call& call, Context& context, CUstream stream, StagingBlock block,
                     bool blocking);
// Executor. Lets go of the blocks that the device has read.
void reap_uploads(Replay& replay, Context& context);
// Executor. Answers a copy to the device: at once, or when the stream has passed this point.
void answer_upload(Replay& replay, Call& call, Context& context, CUstream stream, bool blocking, CUresult result);
// Executor. The device-to-host copy into `block` is on the stream: sends it now if it is soon done, else later.
void answer_download(Replay& replay, Call& call, Context& context, CUstream stream, StagingBlock block, uint64_t bytes);
// Executor. What a copy from the device answers when nothing was put on the stream. A posted one owes its notice too:
// the client waits for it.
void answer_failed_download(Replay& replay, Call& call, CUresult result);
// A copy recorded into a graph would read or write staging long after it has been used for something else.
CUresult refuse_capture(Replay& replay, CUstream stream);

}  // namespace gpuwire::server
