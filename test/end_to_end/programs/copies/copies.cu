// Copies in orders and shapes that a stub may get wrong: page-locked memory that is still being written when the next
// copy reads it, rows with pitches, several pieces, and directions derived from the addresses.
#include <cuda_runtime.h>

#include <cstdio>
#include <cstring>
#include <vector>

#include "../../../support/cuda_check.hpp"

__global__ void add(int* data, int count, int value) {
  for (int i = blockIdx.x * blockDim.x + threadIdx.x; i < count; i += gridDim.x * blockDim.x) data[i] += value;
}

static void CUDART_CB add_on_host(void* value) { *static_cast<int*>(value) += 1000; }

int main() {
  constexpr int kCount = 3000;
  cudaStream_t stream;
  int *device, *pinned;
  CHECK_RUNTIME(cudaStreamCreateWithFlags(&stream, cudaStreamNonBlocking));
  CHECK_RUNTIME(cudaMalloc(&device, kCount * sizeof(int)));
  CHECK_RUNTIME(cudaMallocHost(&pinned, kCount * sizeof(int)));

  // From the device and back through the same page-locked memory, without a wait in between.
  for (int i = 0; i < kCount; ++i) pinned[i] = i;
  for (int round = 0; round < 20; ++round) {
    CHECK_RUNTIME(cudaMemcpyAsync(device, pinned, kCount * sizeof(int), cudaMemcpyHostToDevice, stream));
    add<<<8, 128, 0, stream>>>(device, kCount, 1);
    CHECK_RUNTIME(cudaMemcpyAsync(pinned, device, kCount * sizeof(int), cudaMemcpyDeviceToHost, stream));
  }
  CHECK_RUNTIME(cudaStreamSynchronize(stream));
  for (int i = 0; i < kCount; ++i) {
    if (pinned[i] != i + 20) return std::printf("relay: %d at %d\n", pinned[i], i), 1;
  }

  // The same with a host function that writes the memory in stream order.
  pinned[0] = 0;
  for (int round = 0; round < 5; ++round) {
    CHECK_RUNTIME(cudaLaunchHostFunc(stream, add_on_host, pinned));
    CHECK_RUNTIME(cudaMemcpyAsync(device, pinned, sizeof(int), cudaMemcpyHostToDevice, stream));
    add<<<1, 1, 0, stream>>>(device, 1, 1);
    CHECK_RUNTIME(cudaMemcpyAsync(pinned, device, sizeof(int), cudaMemcpyDeviceToHost, stream));
  }
  CHECK_RUNTIME(cudaStreamSynchronize(stream));
  if (pinned[0] != 5005) return std::printf("host function: %d\n", pinned[0]), 1;

  // More than one piece each way, and an odd number of bytes.
  std::vector<char> out((40u << 20) + 12345), in(out.size());
  for (size_t i = 0; i < out.size(); ++i) out[i] = char((i * 2654435761u) >> 13);
  char* large;
  CHECK_RUNTIME(cudaMalloc(&large, out.size()));
  CHECK_RUNTIME(cudaMemcpy(large, out.data(), out.size(), cudaMemcpyDefault));
  CHECK_RUNTIME(cudaMemcpy(in.data(), large, in.size(), cudaMemcpyDefault));
  if (in != out) return std::printf("pieces differ\n"), 1;

  // Rows: in with one pitch, across the device with another, out with a third.
  constexpr size_t kWidth = 700, kHeight = 900;
  char *first, *second;
  size_t first_pitch, second_pitch;
  CHECK_RUNTIME(cudaMallocPitch(&first, &first_pitch, kWidth, kHeight));
  CHECK_RUNTIME(cudaMallocPitch(&second, &second_pitch, kWidth + 600, kHeight));
  CHECK_RUNTIME(cudaMemcpy2D(first, first_pitch, out.data(), kWidth + 3, kWidth, kHeight, cudaMemcpyHostToDevice));
  CHECK_RUNTIME(cudaMemcpy2D(second + 50, second_pitch, first, first_pitch, kWidth, kHeight, cudaMemcpyDeviceToDevice));
  std::vector<char> rows((kWidth + 11) * kHeight, 'x');
  CHECK_RUNTIME(
      cudaMemcpy2D(rows.data(), kWidth + 11, second + 50, second_pitch, kWidth, kHeight, cudaMemcpyDeviceToHost));
  for (size_t y = 0; y < kHeight; ++y) {
    if (std::memcmp(&rows[y * (kWidth + 11)], &out[y * (kWidth + 3)], kWidth) != 0)
      return std::printf("row %zu differs\n", y), 1;
    for (size_t x = kWidth; x < kWidth + 11; ++x) {
      if (rows[y * (kWidth + 11) + x] != 'x') return std::printf("row %zu was written beyond its end\n", y), 1;
    }
  }

  // Invalid addresses: the call itself returns the error, which is not sticky.
  void* nowhere = reinterpret_cast<void*>(size_t(0x40));
  bool refused = cudaMemcpy(nowhere, pinned, 4, cudaMemcpyHostToDevice) == cudaErrorInvalidValue &&
                 cudaMemcpy(pinned, nowhere, 4, cudaMemcpyDeviceToHost) == cudaErrorInvalidValue &&
                 cudaMemset(nowhere, 0, 4) == cudaErrorInvalidValue;
  cudaGetLastError();
  if (!refused) return std::printf("a wrong address was accepted\n"), 1;
  CHECK_RUNTIME(cudaMemcpy(device, pinned, 4, cudaMemcpyDefault));
  CHECK_RUNTIME(cudaDeviceSynchronize());
  std::printf("PASSED\n");
  return 0;
}
