#include "client_stub/driver/copy_rules.hpp"

#include "client/forward.hpp"
#include "client/hand.hpp"
#include "client_stub/driver/address_map.hpp"
#include "client_stub/driver/context.hpp"
#include "client_stub/driver/managed_faults.hpp"
#include "client_stub/driver/server_session.hpp"
#include "client_stub/session/call.hpp"
#include "schema/session.capnp.h"

namespace gpuwire::client {

bool is_device_address(uint64_t address) {
  auto range = address_map().find(address);
  return range && !is_host(range->kind);
}

bool is_managed_memory(uint64_t address, size_t bytes) {
  if (!managed_faults().may_watch(address)) return false;
  auto range = address_map().find(address);
  return range && is_managed(range->kind) && range->contains(address, bytes);
}

bool is_pinned(const void* memory, size_t bytes) {
  auto address = reinterpret_cast<uint64_t>(memory);
  auto range = address_map().find(address);
  return range && is_host(range->kind) && range->contains(address, bytes);
}

CUresult check_device_range(CUdeviceptr address, size_t bytes, bool& unknown) {
  if (address == 0) return CUDA_ERROR_INVALID_VALUE;
  auto range = address_map().find(address);
  // How long imported memory is, only the server's driver knows.
  if (!range || range->kind == RangeKind::imported) {
    unknown = true;
    return CUDA_SUCCESS;
  }
  if (is_host(range->kind)) return reach_pinned(address, bytes) ? CUDA_SUCCESS : CUDA_ERROR_INVALID_VALUE;
  return range->contains(address, bytes) ? CUDA_SUCCESS : CUDA_ERROR_INVALID_VALUE;
}

CUresult await_verdict(const Caller& caller) {
  return call<schema::Result, schema::Result>(*caller.session, uint32_t(wire::SessionOrdinal::ping), caller.context, message_words<schema::Result>(),
                                              [](auto) {}, [](auto) {});
}

CUresult settle_source(const Caller& caller, const void* source, size_t bytes, uint64_t stream) {
  ServerSession& server = *caller.server;
  if (server.pending_copies.touches(source, bytes)) {
    if (CUresult error = forward::cuCtxSynchronize(caller)) return error;
  }
  // What the device writes there arrives with a synchronisation.
  if (server.host_regions.any() && server.host_regions.holds(reinterpret_cast<uint64_t>(source), 1) && !in_host_callback()) {
    return hand::cuStreamSynchronize(reinterpret_cast<CUstream>(stream), false);
  }
  if (server.graph_memory.being_written(reinterpret_cast<uint64_t>(source), bytes) && !in_host_callback()) {
    return hand::cuStreamSynchronize(reinterpret_cast<CUstream>(stream), false);
  }
  if (!server.host_callbacks.any_to_come() || in_host_callback() || !is_pinned(source, bytes)) return CUDA_SUCCESS;
  return forward::cuStreamSynchronize(caller, reinterpret_cast<CUstream>(stream));
}

CUresult refuse_in_capture(const Caller& caller, uint64_t stream, bool blocking) {
  if (blocking) return caller.server->captures.permit_unsafe_call();  // whatever context captures
  if (!caller.state || caller.state->captures.load(std::memory_order_relaxed) == 0) [[likely]] return CUDA_SUCCESS;
  StreamState* state = find_stream(caller.state, stream);
  return state && caller.server->captures.status(*state) == CU_STREAM_CAPTURE_STATUS_INVALIDATED ? CUDA_ERROR_STREAM_CAPTURE_INVALIDATED : CUDA_SUCCESS;
}

}  // namespace gpuwire::client
