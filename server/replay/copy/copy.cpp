#include "server/replay/copy/copy.hpp"

#include "protocol/wire/limits.hpp"
#include "server/chunk_store/chunk_store.hpp"
#include "server/replay/completion/polling.hpp"
#include "server/replay/call/reply.hpp"
#include "server/replay/context/context.hpp"
#include "server/replay/copy/copy_back.hpp"
#include "server/replay/copy/upload_order.hpp"
#include "server/replay/session/replay_state.hpp"
#include "wire/session_frames.hpp"

namespace gpuwire::server {

void reap_uploads(Replay& replay, Context& context) {
  while (!context.uploads.empty() &&
         replay.driver().cuEventQuery(context.uploads.front().done->get()) != CUDA_ERROR_NOT_READY) {
    context.uploads.pop_front();
  }
}

StagingBlock take_staging(Replay& replay, Context& context, size_t bytes) {
  reap_uploads(replay, context);
  if (StagingBlock block = context.staging->take(bytes)) return block;
  auto until = std::chrono::steady_clock::now() + std::chrono::milliseconds(kStagingWaitMs);
  do {
    // The oldest copy may be on a slow stream, so every copy is checked.
    std::erase_if(context.uploads, [&](const Upload& upload) {
      return replay.driver().cuEventQuery(upload.done->get()) != CUDA_ERROR_NOT_READY;
    });
    replay.state().copy_back().deliver_finished();
    if (StagingBlock block = context.staging->take(bytes)) return block;
    std::this_thread::sleep_for(kWaiterSleepMin);
  } while (std::chrono::steady_clock::now() < until);
  return context.staging->take(bytes, true);
}

CUresult refuse_capture(Replay& replay, CUstream stream) {
  CUstreamCaptureStatus status = CU_STREAM_CAPTURE_STATUS_NONE;
  if (stream == nullptr || !replay.driver().cuStreamIsCapturing) return CUDA_SUCCESS;
  if (replay.driver().cuStreamIsCapturing(stream, &status) != CUDA_SUCCESS) return CUDA_SUCCESS;
  return status == CU_STREAM_CAPTURE_STATUS_NONE ? CUDA_SUCCESS : CUDA_ERROR_STREAM_CAPTURE_UNSUPPORTED;
}

CUresult keep_upload(Replay& replay, const Call& call, Context& context, CUstream stream, StagingBlock block,
                     bool blocking) {
  bool told = blocking && call.header.kind == uint8_t(wire::FrameKind::posted);
  Upload upload{std::move(block), std::make_shared<PooledEvent>(context.events->take()), told};
  CUresult result =
      *upload.done ? drive(replay.driver().cuEventRecord, upload.done->get(), stream) : CUDA_ERROR_OUT_OF_MEMORY;
  if (result != CUDA_SUCCESS) {
    // Without an event (the stream may belong to another context) the executor waits for the stream itself.
    return drive(replay.driver().cuStreamSynchronize, stream);
  }
  UploadOrder* order = replay.state().upload_order();
  if (told && order) order->told(upload.done->get(), upload.done);
  context.uploads.push_back(std::move(upload));
  return CUDA_SUCCESS;
}

namespace {

// Answers once the event has completed: at once if that is soon.
void answer_after(Replay& replay, Call& call, std::shared_ptr<PooledEvent> event,
                  std::function<void(CUresult)> answer) {
  CUresult result = poll_copy(replay, event->get());
  if (result != CUDA_ERROR_NOT_READY) {
    deliver_finished_work(replay);
    return answer(result);
  }
  DeviceWait wait;
  wait.wait = [&replay, event] { return wait_for_event(replay.driver(), event->get()); };
  wait.events = [event] { return std::vector{event->get()}; };
  wait.finish = [&replay, event, answer = std::move(answer)](CUresult waited) {
    deliver_finished_work(replay);
    answer(waited);
  };
  replay.poll_or_defer(call, std::move(wait));
}

std::function<void(CUresult)> result_of(Replay& replay, const Call& call) {
  return [&replay, sequence = call.header.sequence](CUresult result) { send_result(replay, sequence, result); };
}

// Answers once the copies that were reported as done early have arrived. Their own events report the arrival, because
// the stream may by now have later work that waits for the client.
void answer_arrival(Replay& replay, Call& call, Context& context) {
  reap_uploads(replay, context);
  auto newest =
      std::find_if(context.uploads.rbegin(), context.uploads.rend(), [](const Upload& upload) { return upload.told; });
  if (newest != context.uploads.rend()) {
    context.awaited = std::make_shared<Upload>(std::move(*newest));
    context.uploads.erase(std::next(newest).base());
  }
  if (!context.awaited) return finish(replay, call, CUDA_SUCCESS);
  call.answered = true;
  answer_after(replay, call, context.awaited->done, result_of(replay, call));
}

// Records that the program was told that the newest copy, and those before it, are done.
void notify_uploads(Replay& replay, Context& context) {
  reap_uploads(replay, context);
  if (context.uploads.empty()) return;
  Upload& newest = context.uploads.back();
  newest.told = true;
  if (UploadOrder* order = replay.state().upload_order()) order->told(newest.done->get(), newest.done);
}

}  // namespace

void answer_arrived(Replay& replay, Call& call, Context& context, CUstream stream,
                    std::function<void(CUresult)> answer) {
  PooledEvent event = context.events->take();
  CUresult result = event ? drive(replay.driver().cuEventRecord, event.get(), stream) : CUDA_ERROR_OUT_OF_MEMORY;
  if (result != CUDA_SUCCESS) return answer(drive(replay.driver().cuStreamSynchronize, stream));
  answer_after(replay, call, std::make_shared<PooledEvent>(std::move(event)), std::move(answer));
}

void answer_upload(Replay& replay, Call& call, Context& context, CUstream stream, bool blocking, CUresult result) {
  bool called = call.header.kind == uint8_t(wire::FrameKind::called);
  if (!called || !blocking || result != CUDA_SUCCESS) return finish(replay, call, result);
  call.answered = true;
  answer_arrived(replay, call, context, stream, result_of(replay, call));
}

size_t upload_piece(uint64_t remaining, bool waited_for) {
  uint64_t most = kUploadPieceBytes;
  if (waited_for) {
    most = std::min(most, remaining / 2 / kUploadLastPieceBytes * kUploadLastPieceBytes);
    most = std::max<uint64_t>(most, kUploadLastPieceBytes);
  }
  return size_t(std::min(remaining, most));
}

void copy_to_device(Replay& replay, Call& call) {
  auto params = call.message.getRoot<schema::CopyToDevice>();
  Context* context = replay.state().contexts().current();
  if (!context) return finish(replay, call, CUDA_ERROR_INVALID_CONTEXT);
  CUstream stream = nullptr;
  if (!find_stream(replay, params.getStream(), stream)) return finish(replay, call, CUDA_ERROR_INVALID_HANDLE);
  context = replay.state().contexts().enter_stream(stream);
  const bool blocking = params.getBlocking();
  const bool called = call.header.kind == uint8_t(wire::FrameKind::called);
  ChunkStore* chunks = params.getKeep() ? replay.state().chunks() : nullptr;
  if (blocking && call.bulk.remaining() == 0 && called) {
    return answer_arrival(replay, call, *context);
  }
  if (blocking && call.bulk.remaining() == 0) {
    notify_uploads(replay, *context);
    return finish(replay, call, CUDA_SUCCESS);
  }
  CUresult result = refuse_capture(replay, stream);
  CUdeviceptr destination = params.getDestination();
  while (result == CUDA_SUCCESS && call.bulk.remaining() > 0) {
    size_t bytes = upload_piece(call.bulk.remaining(), called);
    StagingBlock block = take_staging(replay, *context, bytes);
    if (!block) {
      result = CUDA_ERROR_OUT_OF_MEMORY;
      break;
    }
    if (!call.bulk.read({block.data(), bytes})) return;
    // All pieces except the last are multiples of a chunk.
    if (chunks) chunks->keep({block.data(), bytes});
    result =
        drive(replay.driver().cuMemcpyHtoDAsync_v2, destination, static_cast<const void*>(block.data()), bytes, stream);
    if (result != CUDA_SUCCESS) break;
    result = keep_upload(replay, call, *context, stream, std::move(block), blocking);
    destination += bytes;
  }
  answer_upload(replay, call, *context, stream, blocking, result);
}

void answer_download(Replay& replay, Call& call, Context& context, CUstream stream, StagingBlock block,
                     uint64_t bytes) {
  CopyFromDeviceState copy{call.header.sequence, bytes, call.header.kind == uint8_t(wire::FrameKind::called), stream,
                           std::move(block),     {}};
  CUresult result = CUDA_SUCCESS;
  CompletionMark mark = mark_stream(replay.driver(), *context.events, stream, result);
  call.answered = true;
  if (result != CUDA_SUCCESS) {
    result = drive(replay.driver().cuStreamSynchronize, stream);
    deliver_finished_work(replay);
    send_copy(replay, copy, result);
    return;
  }
  if (copy.called) {
    result = poll_copy(replay, mark);
    if (result != CUDA_ERROR_NOT_READY) {
      result = settle(replay, mark.event.get(), result);
      if (mark.seen_early) context.passed.add(replay.driver(), stream, std::move(mark.event));
      deliver_finished_work(replay);
      send_copy(replay, copy, result);
      return;
    }
  }
  copy.done = std::move(mark.event);
  replay.state().copy_back().add(context.native, std::move(copy));
}

void answer_failed_download(Replay& replay, Call& call, CUresult result) {
  CopyFromDeviceState nothing;
  nothing.sequence = call.header.sequence;
  nothing.called = call.header.kind == uint8_t(wire::FrameKind::called);
  call.answered = true;
  if (!nothing.called && result != CUDA_SUCCESS) replay.fail_posted(call.header, result);
  send_copy(replay, nothing, result);
}

void copy_from_device(Replay& replay, Call& call) {
  auto params = call.message.getRoot<schema::CopyFromDevice>();
  uint64_t bytes = params.getBytes();
  if (bytes > wire::reply_bulk_bytes_max(wire::SessionOrdinal::copy_from_device))
    throw ProtocolFault{"copy_from_device: more bytes than a reply may carry"};
  Context* context = replay.state().contexts().current();
  if (!context) return answer_failed_download(replay, call, CUDA_ERROR_INVALID_CONTEXT);
  CUstream stream = nullptr;
  if (!find_stream(replay, params.getStream(), stream))
    return answer_failed_download(replay, call, CUDA_ERROR_INVALID_HANDLE);
  context = replay.state().contexts().enter_stream(stream);
  CUresult result = refuse_capture(replay, stream);
  if (result != CUDA_SUCCESS || bytes == 0) return answer_failed_download(replay, call, result);
  StagingBlock block = take_staging(replay, *context, bytes);
  if (!block) return answer_failed_download(replay, call, CUDA_ERROR_OUT_OF_MEMORY);
  result = drive(replay.driver().cuMemcpyDtoHAsync_v2, static_cast<void*>(block.data()), params.getSource(),
                 size_t(bytes), stream);
  if (result != CUDA_SUCCESS) return answer_failed_download(replay, call, result);
  answer_download(replay, call, *context, stream, std::move(block), bytes);
}

}  // namespace gpuwire::server
