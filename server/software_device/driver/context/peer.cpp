// Peer access between devices. All memory belongs to this process, so every pair of devices supports it.
#include "server/software_device/driver/call/api.hpp"

using namespace gpuwire::software_device;

namespace {

CUresult check_pair(CUdevice first, CUdevice second) {
  return driver().device(first) == nullptr || driver().device(second) == nullptr ? CUDA_ERROR_INVALID_DEVICE
                                                                                 : CUDA_SUCCESS;
}

template <typename Body>
CUresult with_peer(CUcontext handle, Body&& body) noexcept {
  return with_context([&](Context& context) -> CUresult {
    const auto slot = driver().contexts.find(handle);
    if (slot == nullptr || slot->live() == nullptr) {
      return CUDA_ERROR_INVALID_CONTEXT;
    }
    return body(context, *slot);
  });
}

}  // namespace

CUresult cuDeviceCanAccessPeer(int* can, CUdevice device, CUdevice peer) {
  return with_driver([&]() -> CUresult {
    if (can == nullptr) {
      return CUDA_ERROR_INVALID_VALUE;
    }
    *can = device != peer ? 1 : 0;
    return check_pair(device, peer);
  });
}

CUresult cuDeviceGetP2PAttribute(int* value, CUdevice_P2PAttribute attribute, CUdevice source, CUdevice target) {
  return with_driver([&]() -> CUresult {
    if (value == nullptr) {
      return CUDA_ERROR_INVALID_VALUE;
    }
    if (check_pair(source, target) != CUDA_SUCCESS || source == target) {
      return CUDA_ERROR_INVALID_DEVICE;
    }
    switch (attribute) {
      case CU_DEVICE_P2P_ATTRIBUTE_ACCESS_SUPPORTED:
      case CU_DEVICE_P2P_ATTRIBUTE_NATIVE_ATOMIC_SUPPORTED: *value = 1; return CUDA_SUCCESS;
      case CU_DEVICE_P2P_ATTRIBUTE_PERFORMANCE_RANK:
      case CU_DEVICE_P2P_ATTRIBUTE_CUDA_ARRAY_ACCESS_SUPPORTED:
      case CU_DEVICE_P2P_ATTRIBUTE_ONLY_PARTIAL_NATIVE_ATOMIC_SUPPORTED: *value = 0; return CUDA_SUCCESS;
      default: return CUDA_ERROR_INVALID_VALUE;
    }
  });
}

CUresult cuCtxEnablePeerAccess(CUcontext handle, unsigned int flags) {
  return with_peer(handle, [&](Context& context, const ContextSlot& peer) -> CUresult {
    if (flags != 0) {
      return CUDA_ERROR_INVALID_VALUE;
    }
    if (peer.device == &context.device()) {
      return CUDA_ERROR_PEER_ACCESS_UNSUPPORTED;
    }
    const uint32_t bit = 1u << peer.device->ordinal;
    return (context.memory.peers.fetch_or(bit, std::memory_order_relaxed) & bit) != 0
               ? CUDA_ERROR_PEER_ACCESS_ALREADY_ENABLED
               : CUDA_SUCCESS;
  });
}

CUresult cuCtxDisablePeerAccess(CUcontext handle) {
  return with_peer(handle, [&](Context& context, const ContextSlot& peer) -> CUresult {
    if (const CUresult refused = permit_unsafe_call(); refused != CUDA_SUCCESS) {
      return refused;
    }
    const CUresult result = context.synchronize();
    const uint32_t bit = 1u << peer.device->ordinal;
    if ((context.memory.peers.fetch_and(~bit, std::memory_order_relaxed) & bit) == 0) {
      return CUDA_ERROR_PEER_ACCESS_NOT_ENABLED;
    }
    return result;
  });
}
