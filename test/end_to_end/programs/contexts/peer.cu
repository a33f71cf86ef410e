// Peer copies and peer access as far as one device goes, and a device that is reset and used again.
#include <cuda_runtime.h>

#include <vector>

#include "../driver_check.hpp"

__global__ void add(int* data, int count) {
  int i = blockIdx.x * blockDim.x + threadIdx.x;
  if (i < count) data[i] += 1;
}

namespace {

constexpr int kCount = 10000;

void copies(CUcontext context) {
  CUdeviceptr a, b;
  CUstream stream;
  OK(cuStreamCreate(&stream, CU_STREAM_NON_BLOCKING));
  OK(cuMemAlloc(&a, kCount * 4));
  OK(cuMemAlloc(&b, kCount * 4));
  std::vector<int> values(kCount), back(kCount);
  for (int i = 0; i < kCount; ++i) values[i] = i;
  OK(cuMemcpyHtoD(a, values.data(), kCount * 4));
  OK(cuMemcpyPeer(b, context, a, context, kCount * 4));
  add<<<80, 128, 0, stream>>>(reinterpret_cast<int*>(b), kCount);
  OK(cuMemcpyPeerAsync(a, context, b, context, kCount * 4, stream));
  OK(cuStreamSynchronize(stream));
  OK(cuMemcpyDtoH(back.data(), a, kCount * 4));
  for (int i = 0; i < kCount; ++i) DEMAND(back[i] == i + 1);

  // A box of 20 x 10 x 5 bytes out of rows of 40 into rows of 64.
  CUDA_MEMCPY3D_PEER box{};
  box.srcMemoryType = CU_MEMORYTYPE_DEVICE;
  box.srcDevice = a;
  box.srcContext = context;
  box.srcPitch = 40;
  box.srcHeight = 12;
  box.dstMemoryType = CU_MEMORYTYPE_DEVICE;
  box.dstDevice = b;
  box.dstContext = context;
  box.dstPitch = 64;
  box.dstHeight = 10;
  box.WidthInBytes = 20;
  box.Height = 10;
  box.Depth = 5;
  OK(cuMemsetD8(b, 0, kCount * 4));
  OK(cuMemcpy3DPeer(&box));
  OK(cuMemcpy3DPeerAsync(&box, stream));
  OK(cuStreamSynchronize(stream));
  std::vector<unsigned char> from(kCount * 4), to(kCount * 4);
  OK(cuMemcpyDtoH(from.data(), a, from.size()));
  OK(cuMemcpyDtoH(to.data(), b, to.size()));
  for (int z = 0; z < 5; ++z) {
    for (int y = 0; y < 10; ++y) {
      for (int x = 0; x < 64; ++x) DEMAND(to[(z * 10 + y) * 64 + x] == (x < 20 ? from[(z * 12 + y) * 40 + x] : 0));
    }
  }
  OK(cuMemFree(a));
  OK(cuMemFree(b));
  OK(cuStreamDestroy(stream));
}

void access(CUdevice device, CUcontext context) {
  int can = -1, value = -1;
  OK(cuDeviceCanAccessPeer(&can, device, device));
  DEMAND(can == 0);
  FAILS(cuDeviceGetP2PAttribute(&value, CU_DEVICE_P2P_ATTRIBUTE_ACCESS_SUPPORTED, device, device),
        CUDA_ERROR_INVALID_DEVICE);
  FAILS(cuCtxEnablePeerAccess(context, 0), CUDA_ERROR_PEER_ACCESS_UNSUPPORTED);
  FAILS(cuCtxDisablePeerAccess(context), CUDA_ERROR_PEER_ACCESS_NOT_ENABLED);
}

void reset_and_go_on() {
  for (int round = 0; round < 3; ++round) {
    int* data;
    DEMAND(cudaMalloc(&data, kCount * 4) == cudaSuccess);
    DEMAND(cudaMemset(data, 0, kCount * 4) == cudaSuccess);
    add<<<80, 128>>>(data, kCount);
    std::vector<int> back(kCount);
    DEMAND(cudaMemcpy(back.data(), data, kCount * 4, cudaMemcpyDeviceToHost) == cudaSuccess);
    for (int value : back) DEMAND(value == 1);
    DEMAND(cudaDeviceReset() == cudaSuccess);
  }
}

}  // namespace

int main() {
  CUdevice device = retain_primary();
  CUcontext context;
  OK(cuCtxGetCurrent(&context));
  copies(context);
  access(device, context);
  reset_and_go_on();
  std::printf("PASSED\n");
  return 0;
}
