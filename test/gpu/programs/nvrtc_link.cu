// NVRTC and nvJitLink: a kernel compiled to PTX and loaded; two sources compiled to LTO and linked into one program for
// this device.
#include <string>

#include <cuda.h>
#include <nvJitLink.h>
#include <nvrtc.h>

#include "../../support/cuda_check.hpp"

namespace {

constexpr unsigned kCount = 1000;

struct Compiled {
  std::string ptx, lto;
};

std::string architecture(const char* prefix) {
  int major = 0, minor = 0;
  CHECK_RUNTIME(cudaDeviceGetAttribute(&major, cudaDevAttrComputeCapabilityMajor, 0));
  CHECK_RUNTIME(cudaDeviceGetAttribute(&minor, cudaDevAttrComputeCapabilityMinor, 0));
  return prefix + std::to_string(major * 10 + minor);
}

Compiled compiled(const char* source, bool for_linking) {
  nvrtcProgram program;
  CHECK_LIBRARY(nvrtcCreateProgram(&program, source, "source.cu", 0, nullptr, nullptr));
  const std::string target = architecture("--gpu-architecture=compute_");
  std::vector<const char*> options{target.c_str()};
  if (for_linking) {
    options.push_back("-dlto");
    options.push_back("-rdc=true");
  }
  if (nvrtcCompileProgram(program, int(options.size()), options.data()) != NVRTC_SUCCESS) {
    size_t bytes = 0;
    nvrtcGetProgramLogSize(program, &bytes);
    std::string log(bytes, ' ');
    nvrtcGetProgramLog(program, log.data());
    std::fprintf(stderr, "%s\n", log.c_str());
    std::exit(EXIT_FAILURE);
  }
  Compiled result;
  size_t bytes = 0;
  if (for_linking) {
    CHECK_LIBRARY(nvrtcGetLTOIRSize(program, &bytes));
    result.lto.resize(bytes);
    CHECK_LIBRARY(nvrtcGetLTOIR(program, result.lto.data()));
  } else {
    CHECK_LIBRARY(nvrtcGetPTXSize(program, &bytes));
    result.ptx.resize(bytes);
    CHECK_LIBRARY(nvrtcGetPTX(program, result.ptx.data()));
  }
  CHECK_LIBRARY(nvrtcDestroyProgram(&program));
  return result;
}

std::string linked(const std::vector<std::string>& parts) {
  const std::string target = architecture("-arch=sm_");
  const char* options[] = {target.c_str(), "-lto"};
  nvJitLinkHandle handle;
  CHECK_LIBRARY(nvJitLinkCreate(&handle, 2, options));
  for (const std::string& part : parts)
    CHECK_LIBRARY(nvJitLinkAddData(handle, NVJITLINK_INPUT_LTOIR, part.data(), part.size(), "part"));
  CHECK_LIBRARY(nvJitLinkComplete(handle));
  size_t bytes = 0;
  CHECK_LIBRARY(nvJitLinkGetLinkedCubinSize(handle, &bytes));
  std::string cubin(bytes, '\0');
  CHECK_LIBRARY(nvJitLinkGetLinkedCubin(handle, cubin.data()));
  CHECK_LIBRARY(nvJitLinkDestroy(&handle));
  return cubin;
}

void run(const char* name, const std::string& image, float expected_factor) {
  CUmodule module;
  CUfunction function;
  CHECK_DRIVER(cuModuleLoadData(&module, image.data()));
  CHECK_DRIVER(cuModuleGetFunction(&function, module, "scale"));
  std::vector<float> in(kCount), expected(kCount);
  for (unsigned i = 0; i < kCount; ++i) {
    in[i] = float(i);
    expected[i] = in[i] * expected_factor + 1;
  }
  check::Device<float> device_in(in), device_out(kCount);
  float *from = device_in.get(), *to = device_out.get();
  unsigned count = kCount;
  void* arguments[] = {&from, &to, &count};
  CHECK_DRIVER(cuLaunchKernel(function, (kCount + 127) / 128, 1, 1, 128, 1, 1, 0, nullptr, arguments, nullptr));
  check::close(name, device_out.host(), expected, 0);
  CHECK_DRIVER(cuModuleUnload(module));
}

}  // namespace

int main() {
  CHECK_RUNTIME(cudaFree(nullptr));
  run("PTX of NVRTC",
      compiled(R"(extern "C" __global__ void scale(const float* in, float* out, unsigned count) {
      unsigned i = blockIdx.x * blockDim.x + threadIdx.x;
      if (i < count) out[i] = in[i] * 3.0f + 1.0f;
    })",
               false)
          .ptx,
      3);
  run("LTO linked by nvJitLink",
      linked({compiled(R"(extern __device__ float factor(float value);
    extern "C" __global__ void scale(const float* in, float* out, unsigned count) {
      unsigned i = blockIdx.x * blockDim.x + threadIdx.x;
      if (i < count) out[i] = factor(in[i]) + 1.0f;
    })",
                       true)
                  .lto,
              compiled("__device__ float factor(float value) { return value * 5.0f; }", true).lto}),
      5);
  std::printf("PASSED\n");
}
