// Launches of graphs. The program's memory from which a graph copies is sent to the server before the launch.
#include <memory>

#include "client/forward.hpp"
#include "client/custom.hpp"
#include "client/session_sends.hpp"
#include "client_stub/driver/state/context/context.hpp"
#include "client_stub/driver/state/copy/copy_rules.hpp"
#include "client_stub/driver/state/copy/memory_in_flight.hpp"
#include "client_stub/driver/state/copy/pending_copies.hpp"
#include "client_stub/driver/state/graph/graph_copies.hpp"
#include "client_stub/driver/state/graph/graph_memory.hpp"
#include "client_stub/driver/state/graph/graph_records.hpp"
#include "client_stub/driver/state/graph/user_objects.hpp"
#include "client_stub/driver/state/host_memory/host_regions.hpp"
#include "client_stub/driver/state/session/server_session.hpp"
#include "client_stub/driver/state/stream/capture.hpp"
#include "client_stub/driver/state/stream/stream_call.hpp"

namespace gpuwire::client {
namespace hand {
namespace {

// Returns the result of a launch whose frame was sent with `result`. If the server's driver may refuse the launch, the
// function waits for its answer.
CUresult launched(const Caller& caller, uint64_t exec, CUresult result) {
  if (!result && caller.server->graph_records.launch_is_judged(exec)) result = await_verdict(caller);
  return result;
}

}  // namespace

CUresult cuGraphLaunch(const StreamCall& on, CUgraphExec exec, CUstream, bool) {
  ServerSession& server = *on.caller.server;
  // A launch cannot be captured into another graph (as measured on driver 580).
  if (capture_of(on.caller, on.wire_stream)) [[unlikely]] {
    server.captures.invalidate(*on.state);
    return CUDA_ERROR_STREAM_CAPTURE_UNSUPPORTED;
  }
  const uint64_t handle = reinterpret_cast<uint64_t>(exec);
  const std::shared_ptr<const GraphUses> uses = server.graph_records.uses_of(handle);
  Awaits awaits = server.graph_records.awaits_of(handle);
  // A kernel of the graph may wait for a word that the program writes, as a kernel by itself may.
  if (!server.host_regions.all_shared()) [[unlikely]]
    awaits = awaits | Awaits::program;
  server.user_objects.note_launch(handle, on.wire_stream);
  if (!uses) [[likely]] {
    MemoryInFlight::Sending sending(on.caller, on.wire_stream, nullptr, awaits);
    uint64_t sequence = 0;
    CUresult result = forward::cuGraphLaunch(on.caller, exec, on.stream(), false, &sequence);
    if (!result) sending.sent(sequence);
    return launched(on.caller, handle, result);
  }
  if (!known_handle(wire::HandleKind::graph_exec, handle)) return CUDA_ERROR_INVALID_VALUE;
  if (uses->blocks.size() > wire::kListItemsMax || uses->pinned.size() > wire::kListItemsMax)
    return CUDA_ERROR_OUT_OF_MEMORY;
  server.host_regions.restore_for_graphs(on.caller, uses->pinned);
  // The program's other changes are sent, too, as before every call that sends work to a stream.
  if (CUresult error = before_work(on.caller)) return error;
  for (const GraphUse& use : uses->ranges) {
    if (!server.pending_copies.touches(reinterpret_cast<const void*>(use.address), use.bytes)) continue;
    if (CUresult error = forward::cuCtxSynchronize(on.caller)) return error;
  }
  // From here on the launch counts as in flight, so that host functions of this launch find it.
  MemoryInFlight::Sending sending(on.caller, on.wire_stream, uses, awaits);
  server.graph_memory.push(on.caller, uses->ranges);
  server.host_regions.push_for_graphs(on.caller, uses->pinned);
  // The pushed memory may contain pointers to other regions.
  server.host_regions.push(on.caller);
  uint64_t sequence = 0;
  CUresult result = send::post_graph_launch(
      *on.caller.session, on.caller.context,
      {.exec = handle, .stream = on.wire_stream, .blocks = uses->blocks, .ranges = uses->pinned}, &sequence, [&] {
        note_foreign_records(on.caller, sequence);
        // The program's waits then include the returning data.
        sending.sent(sequence);
      });
  if (result == CUDA_SUCCESS) note_stream_work(on.caller, on.wire_stream, sequence);
  return launched(on.caller, handle, result);
}

}  // namespace hand
}  // namespace gpuwire::client
