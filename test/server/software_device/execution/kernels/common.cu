// The most common operations of CUDA programs.
#include <cassert>
#include <cstdio>

extern "C" __global__ void vector_add(const float* a, const float* b, float* c, int n) {
  int i = blockIdx.x * blockDim.x + threadIdx.x;
  if (i < n) c[i] = a[i] + b[i];
}

constexpr int kTile = 16;
extern "C" __global__ void matmul_tiled(const float* a, const float* b, float* c, int n) {
  __shared__ float left[kTile][kTile];
  __shared__ float right[kTile][kTile];
  int row = blockIdx.y * kTile + threadIdx.y, column = blockIdx.x * kTile + threadIdx.x;
  float sum = 0;
  for (int t = 0; t < n / kTile; ++t) {
    left[threadIdx.y][threadIdx.x] = a[row * n + t * kTile + threadIdx.x];
    right[threadIdx.y][threadIdx.x] = b[(t * kTile + threadIdx.y) * n + column];
    __syncthreads();
    for (int k = 0; k < kTile; ++k) sum += left[threadIdx.y][k] * right[k][threadIdx.x];
    __syncthreads();
  }
  c[row * n + column] = sum;
}

extern "C" __global__ void block_sum(const int* in, int* out, int n) {
  extern __shared__ int values[];
  int i = blockIdx.x * blockDim.x + threadIdx.x;
  values[threadIdx.x] = i < n ? in[i] : 0;
  __syncthreads();
  for (int step = blockDim.x / 2; step > 0; step /= 2) {
    if (threadIdx.x < step) values[threadIdx.x] += values[threadIdx.x + step];
    __syncthreads();
  }
  if (threadIdx.x == 0) atomicAdd(out, values[0]);
}

extern "C" __global__ void shuffle_sum(const float* in, float* out) {
  float value = in[blockIdx.x * blockDim.x + threadIdx.x];
  for (int step = 16; step > 0; step /= 2) value += __shfl_down_sync(0xffffffff, value, step);
  __shared__ float parts[32];
  if (threadIdx.x % 32 == 0) parts[threadIdx.x / 32] = value;
  __syncthreads();
  if (threadIdx.x < 32) {
    value = threadIdx.x < blockDim.x / 32 ? parts[threadIdx.x] : 0;
    for (int step = 16; step > 0; step /= 2) value += __shfl_xor_sync(0xffffffff, value, step);
    if (threadIdx.x == 0) out[blockIdx.x] = value;
  }
}

extern "C" __global__ void say(int n, const char* word) {
  printf("%d %s %5.2f %lld %c%%|%-6d|%06x|%*d|%e\n", n, "text", n * 1.5, 123456789012345LL, 'z', n, 48879, 7, n, 0.001);
  if (word) printf("word %s\n", word);
}

extern "C" __global__ void demand(int n) { assert(n < 5); }

extern "C" __global__ void fail_here() { __trap(); }

__device__ int counter = 5;
__device__ int* pointer_to_counter = &counter;
__device__ double table[3] = {1.5, -2.5, 1e300};
__constant__ float coefficients[4] = {1, 2, 3, 4};
__constant__ int* constant_pointer = &counter;
extern "C" __global__ void variables(float* out) {
  atomicAdd(pointer_to_counter, 2);
  out[threadIdx.x] =
      coefficients[threadIdx.x] + static_cast<float>(table[threadIdx.x % 2]) + static_cast<float>(*constant_pointer);
}

extern "C" __global__ void heap(unsigned long long* out) {
  int* p = static_cast<int*>(malloc(64));
  for (int i = 0; i < 16; ++i) p[i] = i * threadIdx.x;
  int sum = 0;
  for (int i = 0; i < 16; ++i) sum += p[i];
  out[threadIdx.x] = sum;
  free(p);
}
