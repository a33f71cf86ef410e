#include "client_stub/driver/state/copy/late_copy.hpp"

#include <memory>
#include <utility>
#include <vector>

#include "client/forward.hpp"
#include "client/session_sends.hpp"
#include "client_stub/driver/state/context/context.hpp"
#include "client_stub/driver/state/copy/memory_in_flight.hpp"
#include "client_stub/driver/state/graph/graph_copies.hpp"
#include "client_stub/driver/state/session/server_session.hpp"
#include "client_stub/driver/state/graph/graph_memory.hpp"
#include "client_stub/driver/state/stream/host_callbacks.hpp"
#include "schema/session.capnp.h"

namespace gpuwire::client {
namespace {

constexpr uint8_t kHostFunction = 0;  // HostFunction.kind

CUresult post_reading(const Caller& caller, uint64_t wire_stream, const std::shared_ptr<const GraphUses>& source) {
  HostCallbacks& callbacks = caller.server->host_callbacks;
  HostCallback reading;
  reading.source = source;
  const uint64_t number = callbacks.add(reading);
  if (number == 0) return CUDA_ERROR_OUT_OF_MEMORY;
  uint64_t sequence = 0;
  const CUresult error = send::post_host_function(
      *caller.session, caller.context, {.stream = wire_stream, .callback = number, .kind = kHostFunction}, &sequence);
  if (error) {
    callbacks.remove(number);
    return error;
  }
  callbacks.sent(number, wire_stream, sequence);
  note_stream_work(caller, wire_stream, sequence, false);
  return CUDA_SUCCESS;
}

// `post_copy` posts the copy from the server's block, and stores its sequence.
template <class PostCopy>
CUresult copy_behind_reading(const Caller& caller, uint64_t wire_stream, std::vector<GraphUse> uses,
                             PostCopy&& post_copy) {
  auto source = std::make_shared<const GraphUses>(GraphUses{std::move(uses), {}, {}, true});
  if (CUresult error = before_work(caller)) return error;
  MemoryInFlight::Sending sending(caller, wire_stream, source, Awaits::nothing);
  // Most of the present content is probably final, so it is sent before the stream reaches the copy.
  caller.server->graph_memory.push(caller, source->ranges);
  if (CUresult error = post_reading(caller, wire_stream, source)) return error;
  uint64_t sequence = 0;
  const CUresult result = post_copy(sequence);
  if (!result) sending.sent(sequence);
  return result;
}

}  // namespace

CUresult copy_late(const Caller& caller, CUdeviceptr destination, const Place& source, uint64_t wire_stream) {
  std::vector<GraphUse> uses(1);
  uint64_t place = 0;
  if (CUresult error =
          caller.server->graph_memory.use(caller, source.address, source.bytes, false, uses.front(), place))
    return error;
  return copy_behind_reading(caller, wire_stream, std::move(uses), [&](uint64_t& sequence) {
    return forward::cuMemcpyAsync(caller, destination, place, source.bytes, reinterpret_cast<CUstream>(wire_stream),
                                  false, &sequence);
  });
}

CUresult copy_late(const Caller& caller, CUDA_MEMCPY3D copy, uint64_t wire_stream) {
  std::vector<GraphUse> uses;
  if (CUresult error = to_places(caller, copy, uses, Shared::as_it_is)) return error;
  return copy_behind_reading(caller, wire_stream, std::move(uses), [&](uint64_t& sequence) {
    return forward::cuMemcpy3DAsync_v2(caller, &copy, reinterpret_cast<CUstream>(wire_stream), false, &sequence);
  });
}

}  // namespace gpuwire::client
