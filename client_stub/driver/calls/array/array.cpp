// Queries of arrays: the array is checked before the destination of the answer (as measured on driver 580).
#include "client/forward.hpp"
#include "client/custom.hpp"

namespace gpuwire::client::custom {
namespace {

template <class Handle, class Ask>
CUresult ask(wire::HandleKind kind, Handle handle, Ask&& ask_server) {
  Caller caller = enter(Needs::context);
  const bool known = known_handle(kind, reinterpret_cast<uint64_t>(handle));
  if (CUresult error = argument_first(caller.error, known ? CUDA_SUCCESS : CUDA_ERROR_INVALID_HANDLE)) return error;
  return leave(caller, ask_server(caller));
}

}  // namespace

CUresult cuArrayGetDescriptor_v2(CUDA_ARRAY_DESCRIPTOR* pArrayDescriptor, CUarray hArray) {
  return ask(wire::HandleKind::array, hArray,
             [&](const Caller& caller) { return forward::cuArrayGetDescriptor_v2(caller, pArrayDescriptor, hArray); });
}

CUresult cuArray3DGetDescriptor_v2(CUDA_ARRAY3D_DESCRIPTOR* pArrayDescriptor, CUarray hArray) {
  return ask(wire::HandleKind::array, hArray, [&](const Caller& caller) {
    return forward::cuArray3DGetDescriptor_v2(caller, pArrayDescriptor, hArray);
  });
}

CUresult cuArrayGetPlane(CUarray* pPlaneArray, CUarray hArray, unsigned int planeIdx) {
  return ask(wire::HandleKind::array, hArray,
             [&](const Caller& caller) { return forward::cuArrayGetPlane(caller, pPlaneArray, hArray, planeIdx); });
}

CUresult cuMipmappedArrayGetLevel(CUarray* pLevelArray, CUmipmappedArray hMipmappedArray, unsigned int level) {
  return ask(wire::HandleKind::mipmapped_array, hMipmappedArray, [&](const Caller& caller) {
    return forward::cuMipmappedArrayGetLevel(caller, pLevelArray, hMipmappedArray, level);
  });
}

}  // namespace gpuwire::client::custom
