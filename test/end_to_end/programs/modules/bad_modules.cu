// Loads invalid images, PTX with an error, and good PTX through the driver API, and checks the JIT log.
#include <cuda.h>

#include <cstdio>
#include <cstring>
#include <string>

#include "../../../../examples/check.hpp"

static const char* kGood =
    "\n.version 7.0\n.target sm_70\n.address_size 64\n"
    ".visible .entry answer(.param .u64 out) {\n"
    ".reg .b64 %rd<3>;\n.reg .b32 %r<2>;\n"
    "ld.param.u64 %rd1, [out];\ncvta.to.global.u64 %rd2, %rd1;\nmov.u32 %r1, 42;\nst.global.u32 [%rd2], "
    "%r1;\nret;\n}\n";

static CUresult load(const char* image, std::string& log) {
  char errors[4096] = "";
  CUjit_option options[] = {CU_JIT_ERROR_LOG_BUFFER, CU_JIT_ERROR_LOG_BUFFER_SIZE_BYTES};
  void* values[] = {errors, reinterpret_cast<void*>(sizeof errors)};
  CUmodule module = nullptr;
  CUresult result = cuModuleLoadDataEx(&module, image, 2, options, values);
  log = errors;
  if (result == CUDA_SUCCESS) {
    CUfunction function;
    CUdeviceptr out;
    int value = 0;
    CHECK_DRIVER(cuModuleGetFunction(&function, module, "answer"));
    CUfunction missing;
    if (cuModuleGetFunction(&missing, module, "no_such_kernel") != CUDA_ERROR_NOT_FOUND) result = CUDA_ERROR_UNKNOWN;
    CHECK_DRIVER(cuMemAlloc(&out, sizeof value));
    void* parameters[] = {&out};
    CHECK_DRIVER(cuLaunchKernel(function, 1, 1, 1, 1, 1, 1, 0, nullptr, parameters, nullptr));
    CHECK_DRIVER(cuMemcpyDtoH(&value, out, sizeof value));
    if (value != 42) result = CUDA_ERROR_UNKNOWN;
    CHECK_DRIVER(cuModuleUnload(module));
  }
  return result;
}

// A log that does not fit fills its buffer, with a terminator, and reports the whole buffer as used; nothing is written
// after it.
static bool cut_to_its_buffer(const char* image) {
  constexpr size_t kBytes = 24;
  char errors[2 * kBytes];
  std::memset(errors, '#', sizeof errors);
  CUjit_option options[] = {CU_JIT_ERROR_LOG_BUFFER, CU_JIT_ERROR_LOG_BUFFER_SIZE_BYTES};
  void* values[] = {errors, reinterpret_cast<void*>(kBytes)};
  CUmodule module = nullptr;
  const CUresult result = cuModuleLoadDataEx(&module, image, 2, options, values);
  const size_t used = reinterpret_cast<size_t>(values[1]) & 0xffffffff, length = strnlen(errors, sizeof errors);
  bool untouched = true;
  for (size_t i = kBytes; i < sizeof errors; ++i) untouched &= errors[i] == '#';
  std::printf("a log of %zu bytes: %d, %zu characters, %zu used%s\n", kBytes, result, length, used,
              untouched ? "" : ", written behind");
  return result == CUDA_ERROR_INVALID_PTX && values[0] == errors && length == kBytes - 1 && used == kBytes && untouched;
}

int main() {
  CHECK_DRIVER(cuInit(0));
  CUdevice device;
  CUcontext context;
  CHECK_DRIVER(cuDeviceGet(&device, 0));
  CHECK_DRIVER(cuDevicePrimaryCtxRetain(&context, device));
  CHECK_DRIVER(cuCtxSetCurrent(context));
  std::string log, broken = kGood;
  broken.replace(broken.find("mov.u32"), 7, "moo.u32");
  CUresult garbage = load(
      "\x7f"
      "this is no module at all, whatever it is taken for",
      log);
  CUresult bad = load(broken.c_str(), log);
  bool logged = !log.empty();
  std::string unused;
  const bool cut = cut_to_its_buffer(broken.c_str());
  CUresult good = load(kGood, unused);
  CUmodule module;
  CUresult absent = cuModuleLoad(&module, "/no/such/file.cubin");
  std::printf("garbage %d, bad PTX %d%s, good %d, no file %d\n", garbage, bad,
              logged ? " with a log" : " without a log", good, absent);
  // Garbage gives INVALID_IMAGE, or INVALID_PTX if it was taken for text.
  bool right = (garbage == CUDA_ERROR_INVALID_IMAGE || garbage == CUDA_ERROR_INVALID_PTX) &&
               bad == CUDA_ERROR_INVALID_PTX && logged && cut && good == CUDA_SUCCESS &&
               absent == CUDA_ERROR_FILE_NOT_FOUND;
  std::printf("%s\n", right ? "PASSED" : "FAILED");
  return right ? 0 : 1;
}
