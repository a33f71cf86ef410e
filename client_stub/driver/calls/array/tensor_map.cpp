// Tensor maps. The client encodes them, because libraries make one for each launch, and a map contains nothing of the
// server.
#include "protocol/cuda_abi/tensor_map.hpp"

#include "client/forward.hpp"
#include "client/custom.hpp"
#include "client_stub/driver/process/process.hpp"
#include "client_stub/driver/state/context/context.hpp"

namespace gpuwire::client {
namespace {

// Returns whether the client encodes the maps of this device. The encoding is known for compute capability 9.0, and for
// the software device, which has the same encoder; for other devices the server's driver encodes.
bool encoded_here(const Caller& caller) noexcept {
  if (caller.session->facts().software) return true;
  const auto& attributes = process()->devices[size_t(caller.state->device)].facts->attributes;
  return attributes.size() > CU_DEVICE_ATTRIBUTE_COMPUTE_CAPABILITY_MINOR &&
         attributes[CU_DEVICE_ATTRIBUTE_COMPUTE_CAPABILITY_MAJOR] == 9 &&
         attributes[CU_DEVICE_ATTRIBUTE_COMPUTE_CAPABILITY_MINOR] == 0;
}

}  // namespace

namespace hand {

CUresult cuTensorMapEncodeTiled(const Caller& caller, CUtensorMap* tensorMap, CUtensorMapDataType tensorDataType,
                                cuuint32_t tensorRank, void* globalAddress, const cuuint64_t* globalDim,
                                const cuuint64_t* globalStrides, const cuuint32_t* boxDim,
                                const cuuint32_t* elementStrides, CUtensorMapInterleave interleave,
                                CUtensorMapSwizzle swizzle, CUtensorMapL2promotion l2Promotion,
                                CUtensorMapFloatOOBfill oobFill) {
  if (encoded_here(caller)) {
    return cuda_abi::encode_tensor_map_tiled(tensorMap, tensorDataType, tensorRank, globalAddress, globalDim,
                                             globalStrides, boxDim, elementStrides, interleave, swizzle, l2Promotion,
                                             oobFill);
  }
  if (!tensorMap || !globalDim || !globalStrides || !boxDim || !elementStrides || tensorRank < 1 || tensorRank > 5)
    return CUDA_ERROR_INVALID_VALUE;
  return forward::cuTensorMapEncodeTiled(caller, tensorMap, tensorDataType, tensorRank, globalAddress, globalDim,
                                         globalStrides, boxDim, elementStrides, interleave, swizzle, l2Promotion,
                                         oobFill);
}

CUresult cuTensorMapEncodeIm2col(const Caller& caller, CUtensorMap* tensorMap, CUtensorMapDataType tensorDataType,
                                 cuuint32_t tensorRank, void* globalAddress, const cuuint64_t* globalDim,
                                 const cuuint64_t* globalStrides, const int* pixelBoxLowerCorner,
                                 const int* pixelBoxUpperCorner, cuuint32_t channelsPerPixel,
                                 cuuint32_t pixelsPerColumn, const cuuint32_t* elementStrides,
                                 CUtensorMapInterleave interleave, CUtensorMapSwizzle swizzle,
                                 CUtensorMapL2promotion l2Promotion, CUtensorMapFloatOOBfill oobFill) {
  if (encoded_here(caller)) {
    return cuda_abi::encode_tensor_map_im2col(tensorMap, tensorDataType, tensorRank, globalAddress, globalDim,
                                              globalStrides, pixelBoxLowerCorner, pixelBoxUpperCorner, channelsPerPixel,
                                              pixelsPerColumn, elementStrides, interleave, swizzle, l2Promotion,
                                              oobFill);
  }
  if (!tensorMap || !globalDim || !globalStrides || !pixelBoxLowerCorner || !pixelBoxUpperCorner || !elementStrides ||
      tensorRank < 3 || tensorRank > 5)
    return CUDA_ERROR_INVALID_VALUE;
  return forward::cuTensorMapEncodeIm2col(caller, tensorMap, tensorDataType, tensorRank, globalAddress, globalDim,
                                          globalStrides, pixelBoxLowerCorner, pixelBoxUpperCorner, channelsPerPixel,
                                          pixelsPerColumn, elementStrides, interleave, swizzle, l2Promotion, oobFill);
}

CUresult cuTensorMapEncodeIm2colWide(const Caller& caller, CUtensorMap* tensorMap, CUtensorMapDataType tensorDataType,
                                     cuuint32_t tensorRank, void* globalAddress, const cuuint64_t* globalDim,
                                     const cuuint64_t* globalStrides, int pixelBoxLowerCornerWidth,
                                     int pixelBoxUpperCornerWidth, cuuint32_t channelsPerPixel,
                                     cuuint32_t pixelsPerColumn, const cuuint32_t* elementStrides,
                                     CUtensorMapInterleave interleave, CUtensorMapIm2ColWideMode mode,
                                     CUtensorMapSwizzle swizzle, CUtensorMapL2promotion l2Promotion,
                                     CUtensorMapFloatOOBfill oobFill) {
  if (encoded_here(caller)) {
    return cuda_abi::encode_tensor_map_im2col_wide(tensorMap, tensorDataType, tensorRank, globalAddress, globalDim,
                                                   globalStrides, pixelBoxLowerCornerWidth, pixelBoxUpperCornerWidth,
                                                   channelsPerPixel, pixelsPerColumn, elementStrides, interleave,
                                                   swizzle, l2Promotion, oobFill);
  }
  if (!tensorMap || !globalDim || !globalStrides || !elementStrides || tensorRank < 3 || tensorRank > 5)
    return CUDA_ERROR_INVALID_VALUE;
  return forward::cuTensorMapEncodeIm2colWide(caller, tensorMap, tensorDataType, tensorRank, globalAddress, globalDim,
                                              globalStrides, pixelBoxLowerCornerWidth, pixelBoxUpperCornerWidth,
                                              channelsPerPixel, pixelsPerColumn, elementStrides, interleave, mode,
                                              swizzle, l2Promotion, oobFill);
}

CUresult cuTensorMapReplaceAddress(const Caller& caller, CUtensorMap* tensorMap, void* globalAddress) {
  if (encoded_here(caller)) return cuda_abi::replace_tensor_map_address(tensorMap, globalAddress);
  if (!tensorMap) return CUDA_ERROR_INVALID_VALUE;
  return forward::cuTensorMapReplaceAddress(caller, tensorMap, globalAddress);
}

}  // namespace hand
}  // namespace gpuwire::client
