// Divergence, calls, locks.
#include <cstdio>

extern "C" __global__ void collatz(const unsigned* in, unsigned* out) {
  unsigned i = blockIdx.x * blockDim.x + threadIdx.x;
  unsigned long long value = in[i];
  unsigned steps = 0;
  while (value != 1) {
    if (value & 1) value = 3 * value + 1;
    else value >>= 1;
    ++steps;
  }
  out[i] = steps;
}

__device__ __noinline__ int fibonacci(int n) { return n < 2 ? n : fibonacci(n - 1) + fibonacci(n - 2); }
extern "C" __global__ void recursion(int* out) { out[threadIdx.x] = fibonacci(threadIdx.x % 13); }

__device__ __noinline__ int endless(int n) { return n == -1 ? 0 : endless(n + 1) * 3 + n; }
extern "C" __global__ void too_deep(int* out) { out[0] = endless(1); }

__device__ int plus_one(int a) { return a + 1; }
__device__ int twice(int a) { return a * 2; }
__device__ int square(int a) { return a * a; }
using Function = int (*)(int);
__device__ Function functions[3] = {plus_one, twice, square};
extern "C" __global__ void by_pointer(int* out) { out[threadIdx.x] = functions[threadIdx.x % 3](threadIdx.x); }
extern "C" __global__ void to_nowhere(Function f, int* out) { out[0] = f(3); }

struct Shape {
  __device__ virtual ~Shape() {}
  __device__ virtual float area() const = 0;
};
struct Square : Shape {
  float side;
  __device__ explicit Square(float s) : side(s) {}
  __device__ float area() const override { return side * side; }
};
struct Disc : Shape {
  float radius;
  __device__ explicit Disc(float r) : radius(r) {}
  __device__ float area() const override { return 3.0f * radius * radius; }
};
extern "C" __global__ void virtuals(float* out) {
  Shape* shape;
  if (threadIdx.x % 2) shape = new Square(threadIdx.x);
  else shape = new Disc(threadIdx.x);
  out[threadIdx.x] = shape->area();
  delete shape;
}

struct Pack {
  int a;
  double b;
  char c[5];
  short d[3];
};
__device__ __noinline__ Pack changed(Pack p, int k) {
  p.a += k;
  p.b *= k;
  p.c[k % 5] = static_cast<char>(k);
  p.d[k % 3] -= k;
  return p;
}
extern "C" __global__ void structures(Pack p, Pack* out) { out[threadIdx.x] = changed(p, threadIdx.x); }

extern "C" __global__ void branch_table(const int* in, int* out) {
  int value = in[threadIdx.x], result;
  switch (value) {
    case 0: result = 11; break;
    case 1: result = value * 7; break;
    case 2: result = threadIdx.x; break;
    case 3: result = -4; break;
    case 4: result = in[threadIdx.x ^ 1]; break;
    case 5: result = 1 << threadIdx.x % 8; break;
    case 6: result = 99; break;
    case 7: result = out[threadIdx.x]; break;
    default: result = -1;
  }
  out[threadIdx.x] = result;
}

// Lanes of one warp and of other blocks want the same lock.
extern "C" __global__ void spin_lock(int* lock, int* plain_counter) {
  bool done = false;
  while (!done) {
    if (atomicCAS(lock, 0, 1) == 0) {
      __threadfence();
      *(volatile int*)plain_counter = *(volatile int*)plain_counter + 1;
      __threadfence();
      atomicExch(lock, 0);
      done = true;
    }
  }
}

// The naive form: the winner does not wait, the losers spin in a loop of their own.
extern "C" __global__ void spin_naive(int* lock, int* plain_counter) {
  while (atomicCAS(lock, 0, 1) != 0) {}
  __threadfence();
  *(volatile int*)plain_counter = *(volatile int*)plain_counter + 1;
  __threadfence();
  atomicExch(lock, 0);
}

// A lane waits for a write of another lane of its warp, later in program order.
extern "C" __global__ void lanes_wait(volatile int* flag, int* out) {
  if (threadIdx.x == 0) {
    while (*flag == 0) {}
    out[0] = 1;
  } else if (threadIdx.x == 1) {
    *flag = 1;
  }
  __syncwarp();
  out[threadIdx.x + 1] = threadIdx.x;
}

extern "C" __global__ void early_exit(int* out, int n) {
  __shared__ int shared[64];
  if (threadIdx.x >= n) return;
  shared[threadIdx.x] = threadIdx.x * 2;
  __syncthreads();
  out[threadIdx.x] = shared[n - 1 - threadIdx.x];
}

extern "C" __global__ void local_arrays(const int* in, int* out) {
  int values[32];
  for (int i = 0; i < 32; ++i) values[i] = in[i] * (threadIdx.x + 1);
  int at = threadIdx.x % 32, sum = 0;
  for (int i = 0; i < 100; ++i) {
    sum += values[at];
    at = (at * 5 + 3) % 32;
    values[at] ^= i;
  }
  out[threadIdx.x] = sum;
}

extern "C" __global__ void count_predicates(int* out) {
  int any = __syncthreads_or(threadIdx.x == 70), all = __syncthreads_and(threadIdx.x < 96),
      count = __syncthreads_count(threadIdx.x % 3 == 0);
  if (threadIdx.x == 5) out[0] = any, out[1] = all, out[2] = count;
}

extern "C" __global__ void out_of_bounds(int* out, int offset) { out[offset] = 1; }
extern "C" __global__ void misaligned(char* out) { *reinterpret_cast<int*>(out + 1) = 1; }
extern "C" __global__ void shared_out_of_bounds(int* out, int offset) {
  __shared__ int small[4];
  small[threadIdx.x % 4] = offset;
  out[0] = *(volatile int*)&small[offset];
}
extern "C" __global__ void null_store() { *reinterpret_cast<volatile int*>(0) = 1; }
extern "C" __global__ void forever(volatile int* flag) {
  while (*flag == 0) {}
}
extern "C" __global__ void ordered(int* order, int blocks) {
  // Each block waits for the one after it: all must be resident or preempted.
  if (threadIdx.x == 0) {
    if (blockIdx.x + 1 < blocks) {
      while (atomicAdd(&order[blockIdx.x + 1], 0) == 0) {}
    }
    atomicAdd(&order[blockIdx.x], 1);
  }
}
__constant__ int limits[3] = {7, 8, 9};
extern "C" __global__ void read_constant(int* out) { out[0] = limits[threadIdx.x]; }
extern "C" __global__ void special(unsigned* out) {
  unsigned smid, warp;
  asm("mov.u32 %0, %%smid;" : "=r"(smid));
  asm("mov.u32 %0, %%warpid;" : "=r"(warp));
  unsigned thread = (threadIdx.z * blockDim.y + threadIdx.y) * blockDim.x + threadIdx.x;
  unsigned block = (blockIdx.z * gridDim.y + blockIdx.y) * gridDim.x + blockIdx.x;
  unsigned lane;
  asm("mov.u32 %0, %%laneid;" : "=r"(lane));
  unsigned size = blockDim.x * blockDim.y * blockDim.z;
  out[block * size + thread] =
      block * 1000 + thread + (lane != thread % 32) * 500000 + (warp != thread / 32) * 700000 + (smid > 3) * 900000;
  long long begin = clock64();
  if (clock64() < begin) out[0] = 0;
}
