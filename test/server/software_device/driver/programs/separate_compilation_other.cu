__device__ int offset = 5;
__device__ int triple(int x) { return x * 3; }
