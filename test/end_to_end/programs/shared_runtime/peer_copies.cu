// Peer copies: between two devices if they exist, else from the device to itself by the same calls.
#include "../../../support/cuda_check.hpp"

namespace {

constexpr size_t kCount = 1 << 20, kBytes = kCount * sizeof(float);

__global__ void add_from(float* to, const float* from) {
  const size_t i = blockIdx.x * size_t(blockDim.x) + threadIdx.x;
  if (i < kCount) to[i] += from[i];
}

}  // namespace

int main() {
  int devices = 0, can = -1;
  CHECK_RUNTIME(cudaGetDeviceCount(&devices));
  const int other = devices > 1 ? 1 : 0;
  CHECK_RUNTIME(cudaDeviceCanAccessPeer(&can, 0, 0));
  EXPECT(can == 0);  // a device is no peer of itself
  EXPECT(cudaDeviceEnablePeerAccess(0, 0) == cudaErrorPeerAccessUnsupported);
  static_cast<void>(cudaGetLastError());

  const auto host = check::Random(1).values<float>(kCount);
  float *first, *second;
  CHECK_RUNTIME(cudaSetDevice(0));
  CHECK_RUNTIME(cudaMalloc(&first, kBytes));
  CHECK_RUNTIME(cudaMemcpy(first, host.data(), kBytes, cudaMemcpyHostToDevice));
  CHECK_RUNTIME(cudaSetDevice(other));
  CHECK_RUNTIME(cudaMalloc(&second, kBytes));
  CHECK_RUNTIME(cudaMemset(second, 0, kBytes));
  CHECK_RUNTIME(cudaMemcpyPeer(second, other, first, 0, kBytes));
  std::vector<float> back(kCount);
  CHECK_RUNTIME(cudaMemcpy(back.data(), second, kBytes, cudaMemcpyDefault));
  EXPECT(back == host);

  cudaStream_t stream;
  CHECK_RUNTIME(cudaStreamCreate(&stream));
  CHECK_RUNTIME(cudaMemsetAsync(second, 0, kBytes, stream));
  CHECK_RUNTIME(cudaMemcpyPeerAsync(second, other, first, 0, kBytes / 2, stream));
  CHECK_RUNTIME(cudaMemcpyAsync(second + kCount / 2, first + kCount / 2, kBytes / 2, cudaMemcpyDefault, stream));
  CHECK_RUNTIME(cudaStreamSynchronize(stream));
  CHECK_RUNTIME(cudaMemcpy(back.data(), second, kBytes, cudaMemcpyDeviceToHost));
  EXPECT(back == host);

  if (other) {
    CHECK_RUNTIME(cudaDeviceCanAccessPeer(&can, 1, 0));
    if (can) {
      CHECK_RUNTIME(cudaDeviceEnablePeerAccess(0, 0));
      add_from<<<unsigned((kCount + 255) / 256), 256, 0, stream>>>(second, first);
      CHECK_RUNTIME(cudaStreamSynchronize(stream));
      CHECK_RUNTIME(cudaMemcpy(back.data(), second, kBytes, cudaMemcpyDeviceToHost));
      for (size_t i = 0; i < kCount; ++i) EXPECT(back[i] == 2 * host[i]);
      CHECK_RUNTIME(cudaDeviceDisablePeerAccess(0));
    }
  }
  std::printf("PASSED\n");
  return 0;
}
