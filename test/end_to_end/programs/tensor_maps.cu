// Tensor maps as in libraries that do not link libcuda: the encoder comes from the runtime, the copies are the
// hardware's (sm_90). With the argument "encode" only maps are made, which needs no such hardware.
#include <cuda.h>
#include <cuda_runtime.h>

#include <cstdint>
#include <cstdio>
#include <cstring>
#include <vector>

#include "../../support/cuda_check.hpp"

namespace {

constexpr uint32_t kTileRows = 16, kTileColumns = 32;

#if __CUDA_ARCH__ >= 900
__device__ uint32_t shared_address(const void* pointer) { return uint32_t(__cvta_generic_to_shared(pointer)); }

__device__ void begin_load(const CUtensorMap* map, void* tile, uint64_t* barrier, uint32_t bytes, int x, int y) {
  asm volatile("mbarrier.init.shared::cta.b64 [%0], 1;" ::"r"(shared_address(barrier)) : "memory");
  asm volatile("fence.mbarrier_init.release.cluster;" ::: "memory");
  asm volatile("mbarrier.arrive.expect_tx.shared::cta.b64 _, [%0], %1;" ::"r"(shared_address(barrier)), "r"(bytes)
               : "memory");
  if (y >= 0) {
    asm volatile(
        "cp.async.bulk.tensor.2d.shared::cluster.global.mbarrier::complete_tx::bytes [%0], [%1, {%2, %3}], [%4];" ::"r"(
            shared_address(tile)),
        "l"(map), "r"(x), "r"(y), "r"(shared_address(barrier))
        : "memory");
  } else {
    asm volatile(
        "cp.async.bulk.tensor.1d.shared::cluster.global.mbarrier::complete_tx::bytes [%0], [%1, {%2}], [%3];" ::"r"(
            shared_address(tile)),
        "l"(map), "r"(x), "r"(shared_address(barrier))
        : "memory");
  }
}

__device__ void await(uint64_t* barrier) {
  uint32_t done = 0;
  while (!done) {
    asm volatile("{ .reg .pred p; mbarrier.try_wait.parity.shared::cta.b64 p, [%1], 0; selp.u32 %0, 1, 0, p; }"
                 : "=r"(done)
                 : "r"(shared_address(barrier))
                 : "memory");
  }
}
#endif

// Loads a tile, adds one to each value, and stores it: values beyond the tensor are loaded as zero and not stored.
__global__ void add_one(const __grid_constant__ CUtensorMap in, const __grid_constant__ CUtensorMap out, int* beyond) {
#if __CUDA_ARCH__ >= 900
  __shared__ alignas(128) int tile[kTileRows * kTileColumns];
  __shared__ alignas(8) uint64_t barrier;
  int x = blockIdx.x * kTileColumns, y = blockIdx.y * kTileRows;
  if (threadIdx.x == 0) begin_load(&in, tile, &barrier, sizeof tile, x, y);
  __syncthreads();
  await(&barrier);
  for (uint32_t i = threadIdx.x; i < kTileRows * kTileColumns; i += blockDim.x) {
    if (tile[i] == 0) atomicAdd(beyond, 1);
    tile[i] += 1;
  }
  asm volatile("fence.proxy.async.shared::cta;" ::: "memory");
  __syncthreads();
  if (threadIdx.x == 0) {
    asm volatile("cp.async.bulk.tensor.2d.global.shared::cta.bulk_group [%0, {%1, %2}], [%3];" ::"l"(&out), "r"(x),
                 "r"(y), "r"(shared_address(tile))
                 : "memory");
    asm volatile("cp.async.bulk.commit_group;\n cp.async.bulk.wait_group 0;" ::: "memory");
  }
#endif
}

// Shared memory as the load left it: for one dimension, and for rows whose 16-byte pieces change places.
__global__ void dump(const __grid_constant__ CUtensorMap map, int rank, int* words) {
#if __CUDA_ARCH__ >= 900
  __shared__ alignas(1024) int tile[256];
  __shared__ alignas(8) uint64_t barrier;
  if (threadIdx.x == 0) begin_load(&map, tile, &barrier, sizeof tile, rank == 1 ? 100 : 0, rank == 1 ? -1 : 0);
  __syncthreads();
  await(&barrier);
  for (uint32_t i = threadIdx.x; i < 256; i += blockDim.x) words[i] = tile[i];
#endif
}

using Encode = CUresult (*)(CUtensorMap*, CUtensorMapDataType, cuuint32_t, void*, const cuuint64_t*, const cuuint64_t*,
                            const cuuint32_t*, const cuuint32_t*, CUtensorMapInterleave, CUtensorMapSwizzle,
                            CUtensorMapL2promotion, CUtensorMapFloatOOBfill);
using Replace = CUresult (*)(CUtensorMap*, void*);

template <class Function>
cudaError_t find(const char* name, Function& function) {
  cudaDriverEntryPointQueryResult found;
  cudaError_t error =
      cudaGetDriverEntryPointByVersion(name, reinterpret_cast<void**>(&function), 12000, cudaEnableDefault, &found);
  return error != cudaSuccess ? error : found == cudaDriverEntryPointSuccess ? cudaSuccess : cudaErrorSymbolNotFound;
}

struct Shape {
  cuuint32_t rank;
  cuuint64_t columns, rows, pitch_bytes;
  cuuint32_t box_columns, box_rows;
  CUtensorMapSwizzle swizzle;
};

CUresult encode(Encode function, CUtensorMap* map, void* address, const Shape& shape) {
  cuuint64_t size[] = {shape.columns, shape.rows}, pitch[] = {shape.pitch_bytes};
  cuuint32_t box[] = {shape.box_columns, shape.box_rows}, step[] = {1, 1};
  return function(map, CU_TENSOR_MAP_DATA_TYPE_INT32, shape.rank, address, size, pitch, box, step,
                  CU_TENSOR_MAP_INTERLEAVE_NONE, shape.swizzle, CU_TENSOR_MAP_L2_PROMOTION_L2_128B,
                  CU_TENSOR_MAP_FLOAT_OOB_FILL_NONE);
}

bool copies_are_right(Encode function, Replace replace, int* in, int* out, int* counter) {
  // 100 x 50 values in rows of 112: the last tiles stand out on two sides.
  constexpr int kColumns = 100, kRows = 50, kPitch = 112;
  Shape shape{2, kColumns, kRows, kPitch * sizeof(int), kTileColumns, kTileRows, CU_TENSOR_MAP_SWIZZLE_NONE};
  CUtensorMap from, to;
  if (encode(function, &from, in, shape) || encode(function, &to, in, shape) || replace(&to, out))
    return std::printf("the maps were refused\n"), false;
  std::vector<int> values(kPitch * kRows), results(values.size(), -1);
  for (size_t i = 0; i < values.size(); ++i) values[i] = int(i) + 1;
  cudaMemcpy(in, values.data(), values.size() * sizeof(int), cudaMemcpyHostToDevice);
  cudaMemcpy(out, results.data(), values.size() * sizeof(int), cudaMemcpyHostToDevice);
  cudaMemset(counter, 0, sizeof(int));
  add_one<<<dim3(4, 4), 128>>>(from, to, counter);
  int beyond = 0;
  cudaMemcpy(results.data(), out, values.size() * sizeof(int), cudaMemcpyDeviceToHost);
  if (cudaMemcpy(&beyond, counter, sizeof beyond, cudaMemcpyDeviceToHost) != cudaSuccess)
    return std::printf("the kernel failed\n"), false;
  if (beyond != 4 * 4 * int(kTileRows * kTileColumns) - kColumns * kRows)
    return std::printf("%d values from beyond the tensor\n", beyond), false;
  for (int y = 0; y < kRows; ++y) {
    for (int x = 0; x < kPitch; ++x) {
      int expected = x < kColumns ? values[y * kPitch + x] + 1 : -1;
      if (results[y * kPitch + x] != expected)
        return std::printf("column %d, row %d: %d\n", x, y, results[y * kPitch + x]), false;
    }
  }
  return true;
}

bool layouts_are_right(Encode function, int* in, int* out) {
  std::vector<int> values(1024), words(256);
  for (size_t i = 0; i < values.size(); ++i) values[i] = int(i) + 7;
  cudaMemcpy(in, values.data(), values.size() * sizeof(int), cudaMemcpyHostToDevice);
  CUtensorMap map;
  if (encode(function, &map, in, {1, 300, 0, 0, 256, 0, CU_TENSOR_MAP_SWIZZLE_NONE}))
    return std::printf("one dimension was refused\n"), false;
  dump<<<1, 64>>>(map, 1, out);
  if (cudaMemcpy(words.data(), out, 1024, cudaMemcpyDeviceToHost) != cudaSuccess)
    return std::printf("one dimension failed\n"), false;
  for (int i = 0; i < 256; ++i) {
    int expected = 100 + i < 300 ? values[100 + i] : 0;
    if (words[i] != expected) return std::printf("one dimension: %d at %d\n", words[i], i), false;
  }
  if (encode(function, &map, in, {2, 32, 8, 128, 32, 8, CU_TENSOR_MAP_SWIZZLE_128B}))
    return std::printf("the swizzle was refused\n"), false;
  dump<<<1, 64>>>(map, 2, out);
  if (cudaMemcpy(words.data(), out, 1024, cudaMemcpyDeviceToHost) != cudaSuccess)
    return std::printf("the swizzle failed\n"), false;
  for (int row = 0; row < 8; ++row) {
    for (int i = 0; i < 32; ++i) {
      int place = row * 32 + ((i / 4) ^ row) * 4 + i % 4;  // the 16-byte piece p of row r lies at p xor r
      if (words[place] != values[row * 32 + i]) return std::printf("swizzle: row %d, value %d\n", row, i), false;
    }
  }
  return true;
}

bool errors_are_right(Encode function, int* in) {
  CUtensorMap map;
  Shape good{2, 100, 50, 448, 32, 16, CU_TENSOR_MAP_SWIZZLE_NONE};
  Shape pitch = good, box = good, swizzle = good;
  pitch.pitch_bytes = 440;
  box.box_columns = 257;
  swizzle.swizzle = CU_TENSOR_MAP_SWIZZLE_64B;
  for (const Shape& shape : {pitch, box, swizzle}) {
    if (encode(function, &map, in, shape) != CUDA_ERROR_INVALID_VALUE)
      return std::printf("a wrong shape was accepted\n"), false;
  }
  if (encode(function, &map, reinterpret_cast<char*>(in) + 8, good) != CUDA_ERROR_INVALID_VALUE)
    return std::printf("a wrong address was accepted\n"), false;
  return encode(function, &map, in, good) == CUDA_SUCCESS;
}

}  // namespace

int main(int argc, char** argv) {
  Encode function = nullptr;
  Replace replace = nullptr;
  CHECK_RUNTIME(find("cuTensorMapEncodeTiled", function));
  CHECK_RUNTIME(find("cuTensorMapReplaceAddress", replace));
  int *in, *out, *counter;
  CHECK_RUNTIME(cudaMalloc(&in, 1 << 16));
  CHECK_RUNTIME(cudaMalloc(&out, 1 << 16));
  CHECK_RUNTIME(cudaMalloc(&counter, sizeof(int)));
  if (!errors_are_right(function, in)) return 1;
  for (int i = 0; i < 1000; ++i) {
    CUtensorMap map;
    if (encode(function, &map, in + 4 * i, {2, 100, 50, 448, 32, 16, CU_TENSOR_MAP_SWIZZLE_NONE}))
      return std::printf("map %d was refused\n", i), 1;
  }
  bool only_encode = argc > 1 && std::strcmp(argv[1], "encode") == 0;
  if (!only_encode && (!copies_are_right(function, replace, in, out, counter) || !layouts_are_right(function, in, out)))
    return 1;
  CHECK_RUNTIME(cudaDeviceSynchronize());
  std::printf("PASSED\n");
  return 0;
}
