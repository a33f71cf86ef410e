// The common part of the examples that load module_kernels.fatbin.
#pragma once

#include <cuda.h>
#include <unistd.h>

#include <string>
#include <vector>

#include "check.hpp"

// The fat binary lies beside the program, unless the first argument names another.
inline std::string module_path(int argc, char** argv) {
  if (argc > 1) return argv[1];
  char self[4096];
  ssize_t length = readlink("/proc/self/exe", self, sizeof self);
  std::string path(self, length > 0 ? size_t(length) : 0);
  return path.substr(0, path.rfind('/') + 1) + "module_kernels.fatbin";
}

// Runs `kernel` in the current context on a fresh array, and says whether every element was scaled.
inline bool scale_is_right(CUfunction kernel, float factor) {
  constexpr int kCount = 1000;
  std::vector<float> host(kCount);
  for (int i = 0; i < kCount; ++i) host[i] = float(i);
  CUdeviceptr device;
  CHECK_DRIVER(cuMemAlloc(&device, kCount * sizeof(float)));
  CHECK_DRIVER(cuMemcpyHtoD(device, host.data(), kCount * sizeof(float)));
  int count = kCount;
  void* parameters[] = {&device, &factor, &count};
  CHECK_DRIVER(cuLaunchKernel(kernel, (kCount + 127) / 128, 1, 1, 128, 1, 1, 0, nullptr, parameters, nullptr));
  CHECK_DRIVER(cuMemcpyDtoH(host.data(), device, kCount * sizeof(float)));
  CHECK_DRIVER(cuMemFree(device));
  for (int i = 0; i < kCount; ++i)
    if (host[i] != float(i) * factor) return false;
  return true;
}
