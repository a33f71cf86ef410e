// The other translation unit of separate_units.cu.
__device__ float scale = 0.5f;
__device__ float squared(float value) { return value * value; }
