// Tensor maps of compute capability 9.0, encoded without a driver: 128 bytes that describe to the hardware how its
// tensor copies address memory.
#pragma once

#include <cuda.h>

namespace gpuwire::cuda_abi {

// The functions of the same names in cuda.h, for a device of compute capability 9.0, with the same results and the same
// bytes. Thread: any; no context and no state is needed. After CUDA_ERROR_INVALID_VALUE, `map` is unchanged. Sources of
// layout and rules: the documentation in cuda.h, and the behaviour of driver 580.159.04 on an H200
// (test/protocol/cuda_abi/tensor_maps.txt), which is less strict in places: `map` needs no alignment.
CUresult encode_tensor_map_tiled(CUtensorMap* map, CUtensorMapDataType type, cuuint32_t rank, void* address,
                                 const cuuint64_t* sizes, const cuuint64_t* strides_bytes, const cuuint32_t* box,
                                 const cuuint32_t* steps, CUtensorMapInterleave interleave, CUtensorMapSwizzle swizzle,
                                 CUtensorMapL2promotion promotion, CUtensorMapFloatOOBfill fill) noexcept;

CUresult encode_tensor_map_im2col(CUtensorMap* map, CUtensorMapDataType type, cuuint32_t rank, void* address,
                                  const cuuint64_t* sizes, const cuuint64_t* strides_bytes, const int* lower,
                                  const int* upper, cuuint32_t channels, cuuint32_t pixels, const cuuint32_t* steps,
                                  CUtensorMapInterleave interleave, CUtensorMapSwizzle swizzle,
                                  CUtensorMapL2promotion promotion, CUtensorMapFloatOOBfill fill) noexcept;

// On this compute capability the driver creates an im2col map whose box moves in the first dimension only, and ignores
// the mode.
CUresult encode_tensor_map_im2col_wide(CUtensorMap* map, CUtensorMapDataType type, cuuint32_t rank, void* address,
                                       const cuuint64_t* sizes, const cuuint64_t* strides_bytes, int lower, int upper,
                                       cuuint32_t channels, cuuint32_t pixels, const cuuint32_t* steps,
                                       CUtensorMapInterleave interleave, CUtensorMapSwizzle swizzle,
                                       CUtensorMapL2promotion promotion, CUtensorMapFloatOOBfill fill) noexcept;

CUresult replace_tensor_map_address(CUtensorMap* map, void* address) noexcept;

}  // namespace gpuwire::cuda_abi
