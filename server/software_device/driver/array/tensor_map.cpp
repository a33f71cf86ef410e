// Tensor maps, encoded like an H200's driver does for the same parameters. The software device has no tensor copies
// that would use them.
#include "protocol/cuda_abi/tensor_map.hpp"

#include "server/software_device/driver/call/api.hpp"

using namespace gpuwire::software_device;

CUresult cuTensorMapEncodeTiled(CUtensorMap* map, CUtensorMapDataType type, cuuint32_t rank, void* address,
                                const cuuint64_t* sizes, const cuuint64_t* strides, const cuuint32_t* box,
                                const cuuint32_t* steps, CUtensorMapInterleave interleave, CUtensorMapSwizzle swizzle,
                                CUtensorMapL2promotion promotion, CUtensorMapFloatOOBfill fill) {
  return with_context([&](Context&) {
    return gpuwire::cuda_abi::encode_tensor_map_tiled(map, type, rank, address, sizes, strides, box, steps, interleave,
                                                      swizzle, promotion, fill);
  });
}

CUresult cuTensorMapEncodeIm2col(CUtensorMap* map, CUtensorMapDataType type, cuuint32_t rank, void* address,
                                 const cuuint64_t* sizes, const cuuint64_t* strides, const int* lower, const int* upper,
                                 cuuint32_t channels, cuuint32_t pixels, const cuuint32_t* steps,
                                 CUtensorMapInterleave interleave, CUtensorMapSwizzle swizzle,
                                 CUtensorMapL2promotion promotion, CUtensorMapFloatOOBfill fill) {
  return with_context([&](Context&) {
    return gpuwire::cuda_abi::encode_tensor_map_im2col(map, type, rank, address, sizes, strides, lower, upper, channels,
                                                       pixels, steps, interleave, swizzle, promotion, fill);
  });
}

CUresult cuTensorMapEncodeIm2colWide(CUtensorMap* map, CUtensorMapDataType type, cuuint32_t rank, void* address,
                                     const cuuint64_t* sizes, const cuuint64_t* strides, int lower, int upper,
                                     cuuint32_t channels, cuuint32_t pixels, const cuuint32_t* steps,
                                     CUtensorMapInterleave interleave, CUtensorMapIm2ColWideMode,
                                     CUtensorMapSwizzle swizzle, CUtensorMapL2promotion promotion,
                                     CUtensorMapFloatOOBfill fill) {
  return with_context([&](Context&) {
    return gpuwire::cuda_abi::encode_tensor_map_im2col_wide(map, type, rank, address, sizes, strides, lower, upper,
                                                            channels, pixels, steps, interleave, swizzle, promotion,
                                                            fill);
  });
}

CUresult cuTensorMapReplaceAddress(CUtensorMap* map, void* address) {
  return with_context([&](Context&) { return gpuwire::cuda_abi::replace_tensor_map_address(map, address); });
}
