// A loop like a training step, and others: `training_loop MODE STEPS`. The suite compares the round trips of N steps
// and of 2N.
#include <cuda.h>
#include <cuda_runtime.h>

#include <algorithm>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <string>
#include <vector>

#include "../../../examples/check.hpp"

namespace {

constexpr int kFloats = 64 * 28 * 28;           // a batch of small images: 200,704 bytes
constexpr int kLargeFloats = 2 << 20;           // 8 MiB
constexpr int kPageableFloats = 256 << 10;      // 1 MiB
constexpr int kBatchFloats = 64 * 3 * 32 * 32;  // a batch of small colour images: 0.8 MB
constexpr int kLaunches = 50;

__global__ void add(float* data, const float* other, int count) {
  int i = int(blockIdx.x * blockDim.x + threadIdx.x);
  if (i < count) data[i] += other[i];
}
__global__ void scale(float* data, float factor, int count) {
  int i = int(blockIdx.x * blockDim.x + threadIdx.x);
  if (i < count) data[i] *= factor;
}
__global__ void copy_first(float* out, const float* data) { *out = *data; }

struct Step {
  float *pinned, *large_pinned, *data, *other, *large, *loss;
  std::vector<float> pageable = std::vector<float>(kFloats, 2.f);
  cudaStream_t compute, copies;
  cudaEvent_t copied, computed;

  // `copies_flags`: of the stream for copies.
  explicit Step(unsigned copies_flags) {
    CHECK_RUNTIME(cudaMallocHost(&pinned, kFloats * sizeof(float)));
    CHECK_RUNTIME(cudaMallocHost(&large_pinned, kLargeFloats * sizeof(float)));
    CHECK_RUNTIME(cudaMalloc(&data, kFloats * sizeof(float)));
    CHECK_RUNTIME(cudaMalloc(&other, kFloats * sizeof(float)));
    CHECK_RUNTIME(cudaMalloc(&large, kLargeFloats * sizeof(float)));
    CHECK_RUNTIME(cudaMalloc(&loss, sizeof(float)));
    CHECK_RUNTIME(cudaStreamCreate(&compute));
    CHECK_RUNTIME(cudaStreamCreateWithFlags(&copies, copies_flags));
    CHECK_RUNTIME(cudaEventCreateWithFlags(&copied, cudaEventDisableTiming));
    CHECK_RUNTIME(cudaEventCreate(&computed));
    for (int i = 0; i < kFloats; ++i) pinned[i] = 1.f;
  }

  void launch(cudaStream_t stream) {
    constexpr unsigned blocks = 4;  // a part is enough: what counts is what is sent
    for (int i = 0; i < kLaunches / 2; ++i) {
      add<<<blocks, 256, 0, stream>>>(data, other, kFloats);
      scale<<<blocks, 256, 0, stream>>>(data, .5f, kFloats);
    }
    copy_first<<<1, 1, 0, stream>>>(loss, data);
    CHECK_RUNTIME(cudaGetLastError());
  }

  void run() {
    CHECK_RUNTIME(cudaMemcpyAsync(data, pinned, kFloats * sizeof(float), cudaMemcpyHostToDevice, copies));
    CHECK_RUNTIME(cudaMemcpyAsync(other, pageable.data(), kFloats * sizeof(float), cudaMemcpyHostToDevice, copies));
    CHECK_RUNTIME(cudaEventRecord(copied, copies));
    CHECK_RUNTIME(cudaStreamWaitEvent(compute, copied));
    CHECK_RUNTIME(cudaMemsetAsync(loss, 0, sizeof(float), compute));
    launch(compute);
    CHECK_RUNTIME(cudaMemcpyAsync(other, data, kFloats * sizeof(float), cudaMemcpyDeviceToDevice, compute));
    CHECK_RUNTIME(cudaEventRecord(computed, compute));
    CHECK_RUNTIME(cudaStreamWaitEvent(copies, computed));
  }

  bool pageable_arrived(float expected, int floats) {
    std::vector<float> back(floats);
    CHECK_RUNTIME(cudaMemcpyAsync(back.data(), large, floats * sizeof(float), cudaMemcpyDeviceToHost, copies));
    CHECK_RUNTIME(cudaStreamSynchronize(copies));
    return std::all_of(back.begin(), back.end(), [expected](float value) { return value == expected; });
  }
  // Gives the pinned memory back while it may still be on its way.
  bool large_arrived() {
    for (int i = 0; i < kLargeFloats; ++i) large_pinned[i] = float(i);
    CHECK_RUNTIME(cudaMemcpyAsync(large, large_pinned, kLargeFloats * sizeof(float), cudaMemcpyHostToDevice, copies));
    CHECK_RUNTIME(cudaFreeHost(large_pinned));
    std::vector<float> back(kLargeFloats);
    CHECK_RUNTIME(cudaMemcpyAsync(back.data(), large, kLargeFloats * sizeof(float), cudaMemcpyDeviceToHost, copies));
    CHECK_RUNTIME(cudaStreamSynchronize(copies));
    for (int i = 0; i < kLargeFloats; ++i) {
      if (back[i] != float(i)) return false;
    }
    return true;
  }

  float item() {
    float value = 0;
    CHECK_RUNTIME(cudaMemcpyAsync(&value, loss, sizeof value, cudaMemcpyDeviceToHost, compute));
    CHECK_RUNTIME(cudaStreamSynchronize(compute));
    return value;
  }
};

// Fifty steps towards the pageable batch: x -> (x + 2) / 2, 25 times.
bool converged(float value) { return value > 1.999f && value < 2.001f; }

template <int Number>
__global__ void numbered(float* out) {
  *out = float(Number);
}
template <int... Numbers>
void launch_new(float* out, int count, std::integer_sequence<int, Numbers...>) {
  ((Numbers < count ? numbered<Numbers><<<1, 1>>>(out) : void()), ...);
}

// Of one kernel, which nobody else's library has.
CUkernel library_kernel(int number) {
  const std::string name = "library" + std::to_string(number);
  const std::string image = ".version 7.0\n.target sm_70\n.address_size 64\n.visible .entry " + name +
                            "(.param .u64 out) {\n.reg .b64 %rd<3>;\n.reg .f32 %f<2>;\n"
                            "ld.param.u64 %rd1, [out];\ncvta.to.global.u64 %rd2, %rd1;\ncvt.rn.f32.s32 %f1, " +
                            std::to_string(number) + ";\nst.global.f32 [%rd2], %f1;\nret;\n}\n";
  CUlibrary library;
  CUkernel kernel;
  CHECK_DRIVER(cuLibraryLoadData(&library, image.c_str(), nullptr, nullptr, 0, nullptr, nullptr, 0));
  CHECK_DRIVER(cuLibraryGetKernel(&kernel, library, name.c_str()));
  CUkernel missing;
  if (number == 0 && cuLibraryGetKernel(&missing, library, "no_such_kernel") != CUDA_ERROR_NOT_FOUND) return nullptr;
  return kernel;
}

// Each is asked about twice, and writes its number.
bool libraries(Step& step, int count) {
  for (int number = 0; number < count; ++number) {
    auto function = reinterpret_cast<CUfunction>(library_kernel(number));
    if (!function) return false;
    for (int threads : {32, 64}) {
      int blocks = 0;
      CHECK_DRIVER(cuOccupancyMaxActiveBlocksPerMultiprocessor(&blocks, function, threads, 0));
      if (blocks <= 0) return false;
    }
    void* parameters[] = {&step.loss};
    CHECK_DRIVER(cuLaunchKernel(function, 1, 1, 1, 1, 1, 1, 0, step.compute, parameters, nullptr));
  }
  return step.item() == float(count - 1);
}

// Each time something else has been set for the kernel.
bool occupancy_of_settings(int steps) {
  cudaStream_t stream;
  CHECK_RUNTIME(cudaStreamCreate(&stream));
  for (int i = 1; i <= steps; ++i) {
    CHECK_RUNTIME(cudaFuncSetAttribute(add, cudaFuncAttributeMaxDynamicSharedMemorySize, i << 10));
    for (unsigned blocks : {1u, 2u}) {
      cudaLaunchAttribute cluster{};
      cluster.id = cudaLaunchAttributeClusterDimension;
      cluster.val.clusterDim = {blocks, 1, 1};
      cudaLaunchConfig_t config{};
      config.gridDim = dim3(blocks);
      config.blockDim = dim3(32);
      config.attrs = &cluster;
      config.numAttrs = 1;
      if (blocks == 2) config.stream = stream;  // which says no more than its context, as the NULL stream does
      int clusters = 0;
      CHECK_RUNTIME(cudaOccupancyMaxActiveClusters(&clusters, add, &config));
      if (clusters <= 0) return false;
    }
    size_t dynamic_bytes = 0;
    CHECK_RUNTIME(cudaOccupancyAvailableDynamicSMemPerBlock(&dynamic_bytes, add, 1, 32));
    if (dynamic_bytes == 0) return false;
  }
  CHECK_RUNTIME(cudaStreamDestroy(stream));
  cudaFuncAttributes attributes;
  CHECK_RUNTIME(cudaFuncGetAttributes(&attributes, add));
  return attributes.maxDynamicSharedSizeBytes == steps << 10;
}

void graph(Step& step, int steps) {
  cudaGraph_t captured;
  cudaGraphExec_t executable;
  CHECK_RUNTIME(cudaMemcpy(step.other, step.pageable.data(), kFloats * sizeof(float), cudaMemcpyHostToDevice));
  CHECK_RUNTIME(cudaStreamBeginCapture(step.compute, cudaStreamCaptureModeThreadLocal));
  step.launch(step.compute);
  CHECK_RUNTIME(cudaStreamEndCapture(step.compute, &captured));
  CHECK_RUNTIME(cudaGraphInstantiate(&executable, captured, 0));
  for (int i = 0; i < steps; ++i) CHECK_RUNTIME(cudaGraphLaunch(executable, step.compute));
}

// Blocks of as many sizes, and one larger than what is kept of freed memory. Between the first and the others a library
// is loaded, as when a program begins. All keep what is written to them.
bool sizes(int steps) {
  float *total = nullptr, value = 0;
  CHECK_RUNTIME(cudaMalloc(&total, sizeof value));
  CHECK_RUNTIME(cudaMemset(total, 0, sizeof value));
  add<<<1, 1>>>(total, total, 1);
  std::vector<float*> blocks;
  for (int i = 0; i <= steps; ++i) {
    const size_t bytes = i == 0 ? 33 << 20 : size_t(i) << 20;
    CHECK_RUNTIME(cudaMalloc(&blocks.emplace_back(), bytes));
    value = float(i);
    CHECK_RUNTIME(cudaMemcpyAsync(blocks.back(), &value, sizeof value, cudaMemcpyHostToDevice));
  }
  for (const float* block : blocks) add<<<1, 1>>>(total, block, 1);
  CHECK_RUNTIME(cudaMemcpy(&value, total, sizeof value, cudaMemcpyDeviceToHost));
  return value == float(steps * (steps + 1) / 2);
}

int finish(bool right) {
  CHECK_RUNTIME(cudaDeviceSynchronize());
  std::printf("%s\n", right ? "PASSED" : "the loss is wrong");
  return right ? EXIT_SUCCESS : EXIT_FAILURE;
}

}  // namespace

int main(int argc, char** argv) {
  std::string mode = argc > 1 ? argv[1] : "step";
  int steps = argc > 2 ? std::atoi(argv[2]) : 10;
  if (mode == "sizes") return finish(sizes(steps));
  const bool copies_block = mode == "blocking_pageable" || mode == "blocking_pageable_beside";
  Step step(mode == "blocking_pageable" ? cudaStreamDefault : cudaStreamNonBlocking);
  bool right = true;
  if (mode == "new_kernels") {
    launch_new(step.loss, steps, std::make_integer_sequence<int, 32>());
    right = step.item() == float(steps - 1);
  } else if (mode == "libraries") {
    step.launch(step.compute);  // the program's own library is the first
    right = libraries(step, steps);
  } else if (mode == "occupancy") {
    for (int i = 1; i <= steps; ++i) {
      int blocks = 0;
      CHECK_RUNTIME(cudaOccupancyMaxActiveBlocksPerMultiprocessor(&blocks, add, 32 * i, 0));
      right = right && blocks > 0;
    }
  } else if (mode == "occupancy_of_settings") {
    right = occupancy_of_settings(steps);
  } else if (mode == "graph") {
    graph(step, steps);
    right = converged(step.item());
  } else {
    for (int i = 0; i < steps; ++i) {
      float* scratch = nullptr;
      if (mode == "malloc" || mode == "grow") CHECK_RUNTIME(cudaMalloc(&scratch, 1 << 20));
      if (mode == "malloc_async") CHECK_RUNTIME(cudaMallocAsync(&scratch, 1 << 20, step.compute));
      if (mode == "large_pageable") {
        // The memory is changed at once: what arrives is what it held when the copy was asked for.
        std::vector<float> values(kPageableFloats, float(i));
        CHECK_RUNTIME(cudaMemcpyAsync(step.large, values.data(), kPageableFloats * sizeof(float),
                                      cudaMemcpyHostToDevice, step.copies));
        std::fill(values.begin(), values.end(), -1.f);
      }
      if (copies_block) {
        std::vector<float> values(kBatchFloats, float(i));
        CHECK_RUNTIME(cudaMemcpy(step.large, values.data(), kBatchFloats * sizeof(float), cudaMemcpyHostToDevice));
        std::fill(values.begin(), values.end(), -1.f);
      }
      if (mode == "large_pinned") {
        CHECK_RUNTIME(cudaMemcpyAsync(step.large, step.large_pinned, kLargeFloats * sizeof(float),
                                      cudaMemcpyHostToDevice, step.copies));
      }
      step.run();
      if (mode == "item" || mode == "grow") right = right && converged(step.item());
      if (mode == "poll")
        while (cudaEventQuery(step.computed) == cudaErrorNotReady) {}
      if (mode == "malloc") CHECK_RUNTIME(cudaFree(scratch));
      if (mode == "malloc_async") CHECK_RUNTIME(cudaFreeAsync(scratch, step.compute));
    }
    right = right && converged(step.item());
    if (mode == "large_pageable") right = right && step.pageable_arrived(float(steps - 1), kPageableFloats);
    if (copies_block) right = right && step.pageable_arrived(float(steps - 1), kBatchFloats);
    if (mode == "large_pinned") right = right && step.large_arrived();
  }
  return finish(right);
}
