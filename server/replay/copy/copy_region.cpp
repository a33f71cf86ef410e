// Copies between the device and pages that are shared with a client on this machine: the client copies each byte once,
// and the device reads and writes the shared pages.
#include "server/replay/completion/completion.hpp"
#include "server/replay/completion/polling.hpp"
#include "server/replay/call/reply.hpp"
#include "server/replay/context/context.hpp"
#include "server/replay/copy/copy.hpp"
#include "server/replay/copy/copy_back.hpp"
#include "server/replay/host_memory/host_regions.hpp"
#include "server/replay/session/replay_state.hpp"
#include "server/session_handlers.hpp"
#include "server/session_notices.hpp"

namespace gpuwire::server {

namespace {

// The part of a region that a copy names, and the copy's context and stream.
struct Part {
  void* memory = nullptr;
  size_t bytes = 0;
  Context* context = nullptr;
  CUstream stream = nullptr;
};

CUresult find_part(Replay& replay, uint64_t region, uint64_t bytes, uint64_t stream, Part& out) {
  out.context = replay.state().contexts().current();
  if (!out.context) return CUDA_ERROR_INVALID_CONTEXT;
  if (!find_stream(replay, stream, out.stream)) return CUDA_ERROR_INVALID_HANDLE;
  if (bytes == 0 || !replay.state().host_regions().holds_shared(region, bytes)) return CUDA_ERROR_INVALID_VALUE;
  out.memory = reinterpret_cast<void*>(region);
  out.bytes = size_t(bytes);
  out.context = replay.state().contexts().enter_stream(out.stream);
  return refuse_capture(replay, out.stream);
}

// Calls `done` once the stream has passed this point, with the event that reports this or null: at once if it has
// passed already, otherwise on the watcher's thread, so that the executor continues with the client's next frames.
void when_passed(Replay& replay, const Part& part, std::function<void(CUevent, CUresult)> done) {
  PooledEvent event = part.context->events->take();
  CUresult result = event ? drive(replay.driver().cuEventRecord, event.get(), part.stream) : CUDA_ERROR_OUT_OF_MEMORY;
  if (result != CUDA_SUCCESS) return done(nullptr, drive(replay.driver().cuStreamSynchronize, part.stream));
  result = drive(replay.driver().cuEventQuery, event.get());
  if (result != CUDA_ERROR_NOT_READY) return done(event.get(), result);
  auto shared = std::make_shared<PooledEvent>(std::move(event));
  auto passed = [shared, done](CUresult completed) { done(shared->get(), completed); };
  if (!replay.watcher().watch(part.context->native, shared->get(), passed))
    passed(wait_for_event(replay.driver(), shared->get()));
}

}  // namespace

void copy_region_to_device(Replay& replay, Call& call) {
  auto params = call.message.getRoot<schema::CopyRegionToDevice>();
  const bool called = call.header.kind == uint8_t(wire::FrameKind::called);
  const uint64_t sequence = call.header.sequence;
  Part part;
  CUresult result = find_part(replay, params.getRegion(), params.getBytes(), params.getStream(), part);
  if (result == CUDA_SUCCESS) {
    reap_uploads(replay, *part.context);
    result = drive(replay.driver().cuMemcpyHtoDAsync_v2, CUdeviceptr(params.getDestination()),
                   static_cast<const void*>(part.memory), part.bytes, part.stream);
  }
  if (called) {
    if (result != CUDA_SUCCESS) return finish(replay, call, result);
    return answer_upload(replay, call, *part.context, part.stream, true, result);
  }
  auto read = [&replay, sequence](CUevent, CUresult) { notify::region_read(replay.outbox(), {.sequence = sequence}); };
  if (result != CUDA_SUCCESS) {
    read(nullptr, result);
    return finish(replay, call, result);
  }
  // Queries about the arrival of the program's copies cover this copy, too.
  if (params.getBlocking()) result = keep_upload(replay, call, *part.context, part.stream, StagingBlock(), true);
  when_passed(replay, part, read);
  finish(replay, call, result);
}

void copy_region_from_device(Replay& replay, Call& call) {
  auto params = call.message.getRoot<schema::CopyRegionFromDevice>();
  Part part;
  CUresult result = find_part(replay, params.getRegion(), params.getBytes(), params.getStream(), part);
  if (result == CUDA_SUCCESS)
    result = drive(replay.driver().cuMemcpyDtoHAsync_v2, part.memory, CUdeviceptr(params.getSource()), part.bytes,
                   part.stream);
  if (result != CUDA_SUCCESS) return finish(replay, call, result);
  call.answered = true;
  when_passed(replay, part, [&replay, sequence = call.header.sequence](CUevent event, CUresult passed) {
    // The end of the copy proves the end of all work before it.
    if (event) passed = settle(replay, event, passed);
    deliver_finished_work(replay);
    send_result(replay, sequence, passed);
  });
}

}  // namespace gpuwire::server
