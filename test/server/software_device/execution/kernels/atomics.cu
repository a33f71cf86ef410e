// Atomic operations of all widths, in global and shared memory.
#include <cuda_bf16.h>
#include <cuda_fp16.h>
#include <cuda/atomic>

extern "C" __global__ void all_atomics(int* i, unsigned* u, unsigned long long* l, float* f, double* d, __half* h,
                                       __half2* h2, __nv_bfloat16* b, unsigned short* s) {
  int t = blockIdx.x * blockDim.x + threadIdx.x;
  atomicAdd(&i[0], t);
  atomicSub(&i[1], t);
  atomicMin(&i[2], -t);
  atomicMax(&i[3], t);
  atomicAnd(&u[0], ~(1u << t % 32));
  atomicOr(&u[1], 1u << t % 32);
  atomicXor(&u[2], t);
  atomicInc(&u[3], 9);
  atomicDec(&u[4], 9);
  atomicAdd(&l[0], 0x100000001ull);
  atomicMax(&l[1], static_cast<unsigned long long>(t) << 33);
  atomicMin(reinterpret_cast<long long*>(&l[2]), static_cast<long long>(-t) << 33);
  atomicAdd(&f[0], 0.5f);
  atomicAdd(&d[0], 0.25);
  atomicAdd(&h[0], __float2half(1.0f));
  atomicAdd(h2, __floats2half2_rn(1.0f, 2.0f));
  atomicAdd(&b[0], __float2bfloat16(1.0f));
  unsigned short old = s[0], seen;
  do {
    seen = old;
    old = atomicCAS(&s[0], seen, static_cast<unsigned short>(seen + 3));
  } while (old != seen);
  atomicAdd_system(&i[4], 1);
  atomicAdd_block(&i[5], 1);
}

extern "C" __global__ void shared_atomics(int* out, float* fout) {
  __shared__ int bins[8];
  __shared__ float sum;
  __shared__ unsigned long long wide;
  if (threadIdx.x < 8) bins[threadIdx.x] = 0;
  if (threadIdx.x == 0) sum = 0, wide = 0;
  __syncthreads();
  atomicAdd(&bins[threadIdx.x % 8], 1);
  atomicAdd(&sum, 1.5f);
  atomicAdd(&wide, 1ull << 40);
  __syncthreads();
  if (threadIdx.x < 8) out[blockIdx.x * 8 + threadIdx.x] = bins[threadIdx.x] + static_cast<int>(wide >> 40) * 1000;
  if (threadIdx.x == 0) fout[blockIdx.x] = sum;
}

extern "C" __global__ void cuda_atomics(int* counter, int* flag, int* out) {
  cuda::atomic_ref<int, cuda::thread_scope_device> c(*counter), f(*flag);
  c.fetch_add(2, cuda::std::memory_order_relaxed);
  if (threadIdx.x == 0 && blockIdx.x == 0) f.store(1, cuda::std::memory_order_release);
  while (f.load(cuda::std::memory_order_acquire) == 0) {}
  int expected = 0;
  c.compare_exchange_strong(expected, 5);
  out[blockIdx.x * blockDim.x + threadIdx.x] = f.load();
}
