// The kernels that context_bound_modules, context_free_library and managed_symbol load at run time; compiled to a fat
// binary of its own.

extern "C" __global__ void scale(float* data, float factor, int count) {
  int i = blockIdx.x * blockDim.x + threadIdx.x;
  if (i < count) data[i] *= factor;
}

extern "C" __managed__ int shared_counter = 40;

extern "C" __global__ void count_up() { atomicAdd(&shared_counter, 1); }

extern "C" __global__ void read_counter(int* out) { *out = shared_counter; }
